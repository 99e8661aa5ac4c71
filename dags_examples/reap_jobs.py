"""Cancel training jobs that no task counts on any more.

Airflow can't tell a job of every end of its task: a task marked failed while no triggerer was
alive, a worker lost on the last try, a run deleted.  Every 15 minutes this DAG looks for such jobs
of this Airflow, looks again ten minutes later, and cancels what is left of them.

Give this Airflow a name, [aiptraining] deployment in airflow.cfg: without one, jobs whose run was
deleted are left alone, as they may be another Airflow's.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from airflow_aiptraining.operators.reap import AIPReapTrainingJobsOperator

with DAG(
    "reap_training_jobs",
    schedule=timedelta(minutes=15),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["example"],
):
    AIPReapTrainingJobsOperator(task_id="reap", deferrable=True)
