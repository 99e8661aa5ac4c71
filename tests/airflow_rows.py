"""What Airflow's database says of a run's task ``train``, changed as no API of Airflow can."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from work import Work

_TASK = "dag_id = ? AND run_id = ? AND task_id = 'train'"
_TRIGGER = f"id = (SELECT trigger_id FROM task_instance WHERE {_TASK})"


@contextmanager
def _database(work: Work) -> Iterator[sqlite3.Connection]:
    # Airflow's own processes have it open: each change is one transaction, and waits for its turn.
    with (
        closing(sqlite3.connect(work.airflow.home / "airflow.db", timeout=60)) as database,
        database,
    ):
        yield database


def _get(work: Work, table: str, column: str, where: str) -> Any:
    with _database(work) as database:
        query = f"SELECT {column} FROM {table} WHERE {where}"
        [[value]] = database.execute(query, (work.dag_id, work.run_id)).fetchall()
    return value


def _set(work: Work, table: str, where: str, columns: dict[str, Any]) -> None:
    with _database(work) as database:
        names = ", ".join(f"{name} = ?" for name in columns)
        values = (*columns.values(), work.dag_id, work.run_id)
        change = f"UPDATE {table} SET {names} WHERE {where}"
        assert database.execute(change, values).rowcount == 1


def change_task(work: Work, **columns: Any) -> None:
    """Change the row of the task instance."""
    _set(work, "task_instance", _TASK, columns)


def next_kwargs(work: Work) -> dict[str, Any]:
    """Return what the deferred task's next method gets besides the event."""
    return dict(json.loads(_get(work, "task_instance", "next_kwargs", _TASK)))


def change_trigger(work: Work, **columns: Any) -> None:
    """Change the row of the trigger that the deferred task waits for."""
    _set(work, "trigger", _TRIGGER, columns)


def trigger_kwargs(work: Work) -> dict[str, Any]:
    """Return the arguments of the trigger that the deferred task waits for."""
    return dict(json.loads(_get(work, "trigger", "kwargs", _TRIGGER)))


def triggerer_of(work: Work) -> int | None:
    """Return the id of the triggerer that has the task's trigger; ``None`` for none yet."""
    found: int | None = _get(work, "trigger", "triggerer_id", _TRIGGER)
    return found
