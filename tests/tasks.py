"""Running operators as tasks, one try after the other, without Airflow's processes.

What Airflow gives a task is here in memory: its context and the store that outlives its tries.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import TaskDeferred

DAY = datetime(2026, 11, 14, tzinfo=UTC)


@dataclass
class TaskRun:
    """One task instance over its tries.

    :param folder: of the DAG file.
    :param params: that the DAG declares.
    :param events: what Airflow hands over in place of a job's own event.
    :param conf: what the run adds to or changes in them.
    :param process: the operator of the leg that runs.
    :param ti_id: of all tries; by default each has another.
    """

    folder: Path
    dag_id: str = "retrain-daily"
    run_id: str = "scheduled__2026-11-14T00:00:00+00:00"
    run_type: str = "scheduled"
    logical_date: datetime | None = DAY
    map_index: int = -1
    try_number: int = 0
    max_tries: int = 2
    traceparent: str = "00-first-01"
    params: dict[str, Param] = field(default_factory=dict)
    conf: dict[str, Any] = field(default_factory=dict)
    store: Any = field(default_factory=dict)
    xcoms: dict[str, Any] = field(default_factory=dict)
    events: dict[str, Any] = field(default_factory=dict)
    process: Any = None
    ti_id: str | None = None

    def clear(self) -> None:
        """Do what a person's clear does to a task instance."""
        self.max_tries += 1
        self.traceparent = f"00-cleared-{self.max_tries}-01"

    def context(self, operator: Any) -> Any:
        """Return what Airflow gives ``execute``."""
        ti = SimpleNamespace(
            dag_id=self.dag_id,
            task_id=operator.task_id,
            run_id=self.run_id,
            map_index=self.map_index,
            id=f"{self.run_id} {self.try_number if self.ti_id is None else self.ti_id}",
            try_number=self.try_number,
            max_tries=self.max_tries,
            context_carrier={"traceparent": self.traceparent},
            xcom_push=self.xcoms.__setitem__,
        )
        ti.xcom_push = lambda key, value: self.xcoms.__setitem__(key, value)
        store = SimpleNamespace(
            get=self.store.get,
            set=lambda key, value, retention=None: self.store.update({key: value}),
        )
        declared = {
            name: param.resolve(suppress_exception=True) for name, param in self.params.items()
        }
        return {
            "ti": ti,
            "dag": operator.dag,
            "dag_run": SimpleNamespace(
                run_id=self.run_id,
                run_type=self.run_type,
                logical_date=self.logical_date,
                run_after=self.logical_date or DAY,
            ),
            "params": {**declared, **self.conf},
            "task_state_store": store,
            "run_id": self.run_id,
        }

    def execute(self, kind: type[Any], **arguments: Any) -> Any:
        """Run one try in a fresh operator, deferred legs included, and return its result."""
        self.try_number += 1
        operator = self.operator(kind, **arguments)
        context = self.context(operator)
        operator.render_template_fields(context)
        run = partial(operator.execute, context)
        while True:
            try:
                return run()
            except TaskDeferred as deferred:
                event = asyncio.run(_first_event(deferred.trigger))
                # Every leg of a task is a process of its own.
                operator = self.operator(kind, **arguments)
                operator.render_template_fields(context)
                if isinstance(event, dict):
                    event = self.events.get(event["job_id"], event)
                own = {**(deferred.kwargs or {}), "event": event}
                run = partial(operator.resume_execution, deferred.method_name, own, context)

    def operator(self, kind: type[Any], **arguments: Any) -> Any:
        """Return an operator in a DAG whose file lies in ``folder``."""
        dag = DAG(self.dag_id, schedule=None, params=self.params)
        dag.fileloc = str(self.folder / "dag.py")
        self.process = kind(dag=dag, **{"task_id": "train", **arguments})
        return self.process


async def _first_event(trigger: Any) -> Any:
    """Return a trigger's only event, from a trigger made anew as the triggerer makes it."""
    path, arguments = trigger.serialize()
    assert path == f"{type(trigger).__module__}.{type(trigger).__qualname__}"
    again = type(trigger)(**arguments)
    events = [event.payload async for event in again.run()]
    assert len(events) == 1
    return events[0]
