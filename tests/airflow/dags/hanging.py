"""Jobs that run until somebody ends them, and jobs that run long enough for something to be killed.

Each run's conf says how long its trainer works: ``{"seconds": 600}``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator


def dag(dag_id: str, *, dagrun_timeout: timedelta | None = None, **arguments) -> None:
    """Make a DAG with one training task and two retries."""
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
            retries=2,
            retry_delay=timedelta(seconds=1),
            **arguments,
        )


dag("hangs_deferred", deferrable=True)
dag("hangs_in_worker", deferrable=False)
dag("hangs_kept", deferrable=True, cancel_on_kill=False)
dag("hangs_deadline", deferrable=True, timeout=6)
dag("hangs_deadline_in_worker", deferrable=False, timeout=6)
dag("hangs_run_timeout", deferrable=True, dagrun_timeout=timedelta(seconds=12))
dag("hangs_task_timeout", deferrable=False, execution_timeout=timedelta(seconds=8), timeout=300)
