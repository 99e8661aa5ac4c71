"""Retrain a model every day, let it pass a gate, export it; then deploy what is newest.

    train (AIPTrainingJobOperator)   runs the trainer in breast_cancer/ as a training job
      → gate (AIPModelExportSensor)    is the model whole, new, and good enough?
      → export (AIPModelExportOperator) copies it to models/<job id>/ and moves `latest`
      → DAG deploy_breast_cancer       is started by the export, deploys only the latest model

Which service trains is said by the connection `aiptraining_default` alone.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Asset, task

from airflow_aiptraining.operators.export import AIPModelExportOperator
from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator
from airflow_aiptraining.sensors.model_export import AIPModelExportSensor

# The bucket is the connection's staging bucket, so that no bucket's name is written in this file.
BUCKET = "gs://{{ conn.aiptraining_default.extra_dejson.staging_bucket.removeprefix('gs://') }}"
MODEL = Asset("breast_cancer_model")

with DAG(
    "retrain_daily",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,  # for earlier dates: airflow backfill create
    # A retry attaches to the job that runs; it trains again only after one that FAILED.
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    tags=["example"],
    doc_md=__doc__,
):
    train = AIPTrainingJobOperator(
        task_id="train",
        job_id="breast_cancer",  # becomes breast_cancer_20260101_000000
        config="breast_cancer/config.yaml",  # paths are relative to this file
        package_path="breast_cancer/trainer",
        module_name="trainer.task",
        job_dir=f"{BUCKET}/jobs/{{job_id}}",  # {job_id} is filled in with each attempt's own id
        timeout=3600,  # seconds; the job is cancelled then
        poll_interval=5,
        deferrable=True,  # no worker waits while the job runs
    )

    gate = AIPModelExportSensor(
        task_id="gate",
        job_id=train.output,
        conditions=["accuracy >= 0.9"],  # of the trainer's metrics.json
        poke_interval=15,
    )

    export = AIPModelExportOperator(
        task_id="export",
        gate=gate.output,
        export_dir=f"{BUCKET}/models/breast_cancer",
        outlets=[MODEL],  # each export is an event of this asset
    )


with DAG(
    "deploy_breast_cancer",
    schedule=[MODEL],
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    max_active_runs=1,  # two deployments at one time could overtake each other
    tags=["example"],
):

    @task
    def deploy(triggering_asset_events=None) -> str:
        """Deploy the latest exported model, unless it is deployed already.

        "Deploying" is writing deployed.json here; put your own steps in its place.
        """
        import json

        from airflow_aiptraining.hooks.training import AIPTrainingHook

        # One run may stand for several exports; a backfilled model is one of them, too.
        for events in triggering_asset_events.values():
            for event in events:
                print(f"{event.extra['job_id']} was exported to {event.extra['model_uri']}")

        # Which model is the latest is asked now: while this run was waiting, there may have been
        # another export, and Airflow may drop an event that comes just as it starts a run.
        hook = AIPTrainingHook("aiptraining_default")
        bucket = hook.get_storage_client().bucket(
            hook.settings.staging_bucket.removeprefix("gs://")
        )
        latest = json.loads(bucket.blob("models/breast_cancer/latest.json").download_as_bytes())

        found = bucket.get_blob("deployed/breast_cancer.json")
        deployed = json.loads(found.download_as_bytes()) if found else {}
        if deployed.get("job_id") == latest["job_id"]:
            return f"{latest['job_id']} is deployed already"
        bucket.blob("deployed/breast_cancer.json").upload_from_string(
            json.dumps({key: latest[key] for key in ("job_id", "logical_date", "model_uri")}),
            content_type="application/json",
            # Only if nobody wrote it since we read it.
            if_generation_match=found.generation if found else 0,
        )
        return f"deployed {latest['job_id']}"

    deploy()
