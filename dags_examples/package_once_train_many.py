"""Build the trainer once, train several models from it at one time, export the best of them.

    package (AIPPackageTrainerOperator)    builds and uploads the trainer
      → train (AIPTrainingJobOperator)       one job for each setting, a mapped task
      → gate (AIPModelExportSensor)          judges each of the models
      → best → export (AIPModelExportOperator)
      ↘ running_jobs → cancel (AIPCancelTrainingJobOperator)

Without the best of all settings there is nothing to export.  So as soon as one job has failed for
good the others are cancelled: they would cost money for nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, Param, task

from airflow_aiptraining.operators.cancel import AIPCancelTrainingJobOperator
from airflow_aiptraining.operators.export import AIPModelExportOperator
from airflow_aiptraining.operators.package import AIPPackageTrainerOperator
from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator
from airflow_aiptraining.sensors.model_export import AIPModelExportSensor

BUCKET = "gs://{{ conn.aiptraining_default.extra_dejson.staging_bucket.removeprefix('gs://') }}"

with DAG(
    "package_once_train_many",
    schedule=None,  # only by hand
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    params={
        "regularization": Param(
            ["0.1", "1", "10"], type="array", items={"type": "string"}, title="Regularization"
        )
    },
    tags=["example"],
    doc_md=__doc__,
):

    @task
    def settings(params=None) -> list[list[str]]:
        """Return the trainer's extra arguments, a list for each job."""
        return [["--regularization", value] for value in params["regularization"] if value]

    @task
    def best(verdicts) -> dict:
        """Return what the gate said of the most accurate model."""
        return max(verdicts, key=lambda verdict: verdict["metrics"]["accuracy"])

    @task(trigger_rule="one_failed")  # doesn't wait for the other jobs
    def running_jobs(ti=None) -> list[str]:
        """Return the jobs submitted so far; to cancel one that has ended does nothing."""
        tasks = range(len(ti.xcom_pull("settings")))
        return [job for job in ti.xcom_pull("train", key="job_id", map_indexes=tasks) if job]

    package = AIPPackageTrainerOperator(
        task_id="package",
        package_path="breast_cancer/trainer",
        module_name="trainer.task",
    )

    train = AIPTrainingJobOperator.partial(
        task_id="train",
        job_id="breast_cancer_grid",  # becomes breast_cancer_grid_<date>_r<run>_m00000
        config="breast_cancer/config.yaml",
        packages=[package.output],
        module_name="trainer.task",
        job_dir=f"{BUCKET}/jobs/{{job_id}}",
        poll_interval=5,
        deferrable=True,
    ).expand(extra_args=settings())

    gate = AIPModelExportSensor.partial(task_id="gate", poke_interval=15).expand(
        job_id=train.output
    )

    AIPModelExportOperator(
        task_id="export",
        gate=best(gate.output),
        export_dir=f"{BUCKET}/models/breast_cancer_grid",
    )

    submitted = running_jobs()
    train >> submitted
    AIPCancelTrainingJobOperator.partial(task_id="cancel").expand(job_id=submitted)
