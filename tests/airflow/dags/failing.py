"""Jobs that fail: for ever, and at the first attempt only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator


def train(**arguments) -> AIPTrainingJobOperator:
    """Return a task that trains with the stub trainer."""
    return AIPTrainingJobOperator(
        task_id="train",
        package_path="stub/trainer",
        module_name="trainer.task",
        scale_tier="basic",
        poll_interval=1,
        deferrable=True,
        **arguments,
    )


with DAG("always_fails", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    train(job_id="always_fails", args=["--fail-unless", "never"])

with DAG("fails_once", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    train(
        job_id="fails_once",
        # {job_id} is each attempt's own id; that of the second ends with _a002.
        args=["--text", "{job_id}", "--fail-unless", "_a002"],
        retries=1,
        retry_delay=timedelta(seconds=1),
    )
