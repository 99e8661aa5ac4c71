"""Jobs that never end by themselves, and the reaper that ends those without a task."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from airflow_aiptraining.operators.reap import AIPReapTrainingJobsOperator
from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator

with DAG("Never.Ends", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    arguments = {
        "package_path": "stub/trainer",
        "module_name": "trainer.task",
        "scale_tier": "basic",
        "args": ["--seconds", "600"],
        "poll_interval": 1,
        "deferrable": True,
    }
    AIPTrainingJobOperator(
        task_id="train", retries=5, retry_delay=timedelta(hours=1), job_id="never_ends", **arguments
    )
    AIPTrainingJobOperator(
        task_id="leave", wait_for_completion=False, job_id="is_left", **arguments
    )

with DAG("reap_now", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    AIPReapTrainingJobsOperator(task_id="reap", grace=2, deferrable=True)
