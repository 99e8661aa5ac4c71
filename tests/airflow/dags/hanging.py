"""Jobs that run until somebody ends them, and jobs that run long enough for something to be killed.

Each run's conf says how long its trainer works: ``{"seconds": 600}``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator


def dag(
    dag_id: str,
    *,
    dagrun_timeout: timedelta | None = None,
    retries: int = 2,
    retry_delay: float = 1,
    **arguments,
) -> None:
    """Make a DAG with one training task."""
    with DAG(
        dag_id,
        schedule=None,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        params={"seconds": Param(600, type="integer")},
        dagrun_timeout=dagrun_timeout,
        max_active_runs=20,
    ):
        AIPTrainingJobOperator(
            task_id="train",
            job_id=dag_id,
            package_path="stub/trainer",
            module_name="trainer.task",
            scale_tier="basic",
            args=["--seconds", "{{ params.seconds }}"],
            poll_interval=1,
            retries=retries,
            retry_delay=timedelta(seconds=retry_delay),
            **arguments,
        )


dag("hangs_deferred", deferrable=True)
dag("hangs_in_worker", deferrable=False)
dag("hangs_until_deleted", deferrable=True)
dag("hangs_in_worker_without_retries", deferrable=False, retries=0)
# Each try that begins while the api-server is away ends in some seconds, before the operator runs.
dag("hangs_in_worker_patiently", deferrable=False, retries=8, retry_delay=15)
dag("hangs_kept", deferrable=True, cancel_on_kill=False)
dag("hangs_kept_in_worker", deferrable=False, cancel_on_kill=False)
dag("hangs_deadline", deferrable=True, timeout=6)
dag("hangs_long_deadline", deferrable=True, timeout=900)
dag("hangs_deadline_in_worker", deferrable=False, timeout=6)
dag("hangs_run_timeout", deferrable=True, dagrun_timeout=timedelta(seconds=12))
dag("hangs_run_timeout_in_worker", deferrable=False, dagrun_timeout=timedelta(seconds=20))
dag("hangs_task_timeout", deferrable=False, execution_timeout=timedelta(seconds=8), timeout=300)
