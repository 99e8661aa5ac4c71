"""Train with other settings, chosen in the form that opens at "Trigger" in the Airflow UI.

`training_params()` gives the form dropdowns for machine types and the like.  What is chosen there
is merged over config.yaml and over the operator's arguments.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator
from airflow_aiptraining.params import training_params

BUCKET = "gs://{{ conn.aiptraining_default.extra_dejson.staging_bucket.removeprefix('gs://') }}"

with DAG(
    "retrain_with_params",
    schedule=None,  # only by hand
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    params={
        **training_params(),
        # A param of your own: any templated argument may use it, see extra_args below.
        "regularization": Param(1.0, type="number", exclusiveMinimum=0, title="Regularization"),
    },
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    tags=["example"],
    doc_md=__doc__,
):
    AIPTrainingJobOperator(
        task_id="train",
        job_id="breast_cancer_by_hand",
        config="breast_cancer/config.yaml",
        package_path="breast_cancer/trainer",
        module_name="trainer.task",
        extra_args=["--regularization", "{{ params.regularization }}"],
        job_dir=f"{BUCKET}/jobs/{{job_id}}",
        poll_interval=5,
        deferrable=True,
    )
