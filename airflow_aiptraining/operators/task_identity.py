"""Which piece of work a task instance is, and what tells its tries and clears apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_aiptraining.core.attempts import Stamp
from airflow_aiptraining.core.job_ids import WorkId, default_base, work_id
from airflow_aiptraining.core.task_keys import TaskKey

if TYPE_CHECKING:
    from airflow.sdk import Context


def map_index_of(ti: Any) -> int:
    """Return a task instance's map index; -1 where the task isn't mapped."""
    return -1 if ti.map_index is None else int(ti.map_index)


def task_of(context: Context) -> TaskKey:
    """Return the ids of this task instance."""
    ti = context["ti"]
    return TaskKey(ti.dag_id, ti.task_id, ti.run_id, map_index_of(ti))


def work_of(context: Context, base: str | None, *, map_index: int | None = None) -> WorkId:
    """Return the work that names this task instance's attempts.

    :param base: the author's base of job ids; ``None`` for one made from dag id and task id.
    :param map_index: of another task's instance in the same run; by default this one's.
    :raises InvalidJobIdError: the base isn't legal.
    """
    ti, run = context["ti"], context["dag_run"]
    if map_index is None:
        map_index = map_index_of(ti)
    return work_id(
        base if base is not None else default_base(ti.dag_id, ti.task_id),
        run_id=ti.run_id,
        run_type=str(getattr(run.run_type, "value", run.run_type)),
        logical_date=run.logical_date,
        run_after=run.run_after,
        map_index=map_index,
    )


def stamp_of(context: Context) -> Stamp:
    """Return what a person's clear changes on a task instance and a retry doesn't."""
    ti = context["ti"]
    carrier = getattr(ti, "context_carrier", None) or {}
    return Stamp(int(ti.max_tries or 0), str(carrier.get("traceparent") or ""))
