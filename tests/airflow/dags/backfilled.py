"""A month to be backfilled, five jobs a day: awaited in a worker, by a trigger, and mapped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator

#: 0 to 2 seconds, another for each day.
SECONDS = ["--seconds", "{{ logical_date.day % 3 }}"]

with DAG(
    "backfilled",
    schedule="@daily",
    start_date=datetime(2020, 1, 1, tzinfo=UTC),
    end_date=datetime(2020, 12, 31, tzinfo=UTC),
    catchup=False,
    max_active_runs=16,
    default_args={
        "package_path": "stub/trainer",
        "module_name": "trainer.task",
        "scale_tier": "basic",
        # A place of its own, where no other test has left the package.
        "staging_bucket": "gs://test-bucket/backfilled",
        "poll_interval": 2,
        # On a busy machine Airflow itself fails tries that it resumes too soon.
        "retries": 20,
        "retry_delay": timedelta(seconds=1),
    },
):
    AIPTrainingJobOperator(
        task_id="in_worker", job_id="bf_in_worker", args=SECONDS, deferrable=False
    )
    for task_id in ("deferred", "deferred_too"):
        AIPTrainingJobOperator(
            task_id=task_id, job_id=f"bf_{task_id}", args=SECONDS, deferrable=True
        )
    AIPTrainingJobOperator.partial(task_id="mapped", job_id="bf_mapped", deferrable=True).expand(
        args=[SECONDS, ["--seconds", "1"]]
    )
