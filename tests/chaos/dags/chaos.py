"""Four short training jobs a run: awaited in a worker, by a trigger, and mapped.

One of the mapped instances fails at its first attempt, whatever happens, and succeeds at the next.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator

#: 2 to 6 seconds, another for each run, or a multiple of that.
SECONDS = "{{ params.stretch * (2 + (logical_date.day * 3) % 5) }}"

with DAG(
    "chaos",
    schedule="@daily",
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    end_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=8,
    params={"stretch": Param(1, type="integer")},
    default_args={
        "package_path": "../../airflow/dags/stub/trainer",
        "module_name": "trainer.task",
        "scale_tier": "basic",
        "poll_interval": 1,
        # LocalExecutor accepts tasks without end; past some dozens its queue blocks the scheduler.
        "pool": "chaos",
        "retries": 1000,
        "retry_delay": timedelta(seconds=1),
    },
):
    AIPTrainingJobOperator(
        task_id="in_worker", job_id="in_worker", args=["--seconds", SECONDS], deferrable=False
    )
    AIPTrainingJobOperator(
        task_id="deferred", job_id="deferred", args=["--seconds", SECONDS], deferrable=True
    )
    AIPTrainingJobOperator.partial(task_id="mapped", job_id="mapped", deferrable=True).expand(
        args=[
            ["--seconds", "{{ params.stretch * 4 }}"],
            ["--seconds", "{{ params.stretch * 2 }}", "--fail-unless", "_a0", "--text", "{job_id}"],
        ]
    )
