"""Wait for training jobs that something else submitted.

A job is found by its id, or by its base and a date: `breast_cancer` at this run's logical date is
the newest attempt at breast_cancer_20260101_000000.  By base and date, a failed attempt isn't the
end while the task that trains may still make another.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, Param

from airflow_aiptraining.sensors.training_job import AIPTrainingJobSensor

with DAG(
    "wait_for_daily_training",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    tags=["example"],
):
    # Of the DAG retrain_daily, whose run of the same date trains this job.
    AIPTrainingJobSensor(
        task_id="wait",
        job_id_base="breast_cancer",
        logical_date="{{ ts }}",
        poke_interval=15,  # seconds
        timeout=2 * 3600,
        deferrable=True,
    )

with DAG(
    "wait_for_job",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    params={"job_id": Param(type="string", minLength=1, title="Id of the training job")},
    tags=["example"],
):
    AIPTrainingJobSensor(
        task_id="wait",
        job_id="{{ params.job_id }}",
        poke_interval=15,
        timeout=2 * 3600,
        deferrable=True,
    )
