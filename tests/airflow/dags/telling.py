"""Training tasks whose jobs end when a test says so, for clears and retries at any moment.

Each run's conf names the folder in which the test leaves word: ``{"folder": "/..."}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Context, Param

from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator


class Breaking(AIPTrainingJobOperator):
    """Raises once, at the end of its first try's ``execute`` or ``execute_complete``."""

    def __init__(self, *, breaks_in: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.breaks_in = breaks_in

    def execute(self, context: Context) -> Any:
        """Submit, then raise instead of deferring or returning."""
        try:
            return super().execute(context)
        finally:
            self._break("execute", context)

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], job_id: str | None = None
    ) -> Any:
        """Judge the job, then raise instead of returning its result."""
        result = super().execute_complete(context, event, job_id)
        self._break("execute_complete", context)
        return result

    def _break(self, where: str, context: Context) -> None:
        if where == self.breaks_in and context["ti"].try_number == 1:
            raise RuntimeError(f"{where} breaks at the first try")


def dag(
    dag_id: str,
    *,
    deferrable: bool = True,
    retries: int = 2,
    retry_delay: timedelta = timedelta(seconds=1),
    breaks_in: str = "",
    indices: int = 0,
    upstream: bool = False,
    **arguments: Any,
) -> None:
    """Make a DAG with one training task.

    :param breaks_in: see :class:`Breaking`.
    :param indices: so many instances of a mapped task; 0 for a task that isn't mapped.
    :param upstream: let a task ``up`` go before.
    """
    with DAG(
        dag_id,
        schedule="@daily" if dag_id == "told_daily" else None,
        start_date=datetime(2020, 1, 1, tzinfo=UTC),
        end_date=datetime(2020, 12, 31, tzinfo=UTC) if dag_id == "told_daily" else None,
        catchup=False,
        params={"folder": Param("/nonexistent", type="string")},
        max_active_runs=20,
        default_args={
            "job_id": dag_id,
            "package_path": "told/trainer",
            "module_name": "trainer.task",
            "scale_tier": "basic",
            "poll_interval": 1,
            "deferrable": deferrable,
            "retries": retries,
            "retry_delay": retry_delay,
            **arguments,
        },
    ):
        args = ["--end", "{{ params.folder }}/{job_id}"]
        if indices:
            AIPTrainingJobOperator.partial(task_id="train").expand(args=[args] * indices)
            return
        if breaks_in:
            train: AIPTrainingJobOperator = Breaking(
                task_id="train", args=args, breaks_in=breaks_in
            )
        else:
            train = AIPTrainingJobOperator(task_id="train", args=args)
        if upstream:
            EmptyOperator(task_id="up") >> train


#: Long enough to be seen and acted upon.
SOON = timedelta(seconds=15)
LATER = timedelta(hours=1)

dag("told_deferred")
dag("told_in_worker", deferrable=False)
dag("told_mapped", indices=2)
dag("told_downstream", upstream=True)
dag("told_once_deferred", retries=0)
dag("told_once_in_worker", retries=0, deferrable=False)
dag("told_once_mapped", retries=0, indices=2)
dag("told_twice", retries=1)
dag("told_later", retry_delay=LATER)
dag("told_breaks_in_execute", breaks_in="execute")
dag("told_breaks_in_execute_in_worker", breaks_in="execute", deferrable=False)
dag("told_breaks_in_execute_complete", breaks_in="execute_complete", upstream=True)
dag("told_breaks_later", breaks_in="execute", retry_delay=LATER)
dag("told_breaks_soon", breaks_in="execute", retry_delay=SOON)
dag("told_waits_at_first", pool="told_first")
dag("told_waits_at_retry", pool="told_retry", breaks_in="execute", retry_delay=SOON)
dag("told_waits_at_clear", pool="told_clear")
dag("told_daily", retries=0)

with DAG("untold", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    # Never let go: its runs only stand in the database.
    EmptyOperator(task_id="up")
