"""A trainer that really runs, the gate that waits for it, and the export of what it wrote."""

from __future__ import annotations

import io
import json
import time
import zipfile
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors
from embedded import Service

from airflow_aiptraining.hooks.training import AIPTrainingHook
from airflow_aiptraining.operators.export import AIPModelExportOperator
from airflow_aiptraining.sensors.model_export import AIPModelExportSensor

CONN = "aiptraining_real_jobs"
BUCKET = "export-of-real-jobs"

TRAINER = """
import argparse, json, os, urllib.parse, urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("--job-dir")
parser.add_argument("--accuracy", type=float)
arguments = parser.parse_args()

def write(name, data):
    bucket, _, folder = arguments.job_dir.removeprefix("gs://").partition("/")
    name = urllib.parse.quote(f"{folder.rstrip('/')}/{name}", safe="")
    host = os.environ["STORAGE_EMULATOR_HOST"]
    url = f"{host}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
    urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "text/plain"}))

if arguments.accuracy:
    write("model.joblib", b"an estimator")
    write("metrics.json", json.dumps({"accuracy": arguments.accuracy}).encode())
"""


def wheel() -> bytes:
    info = "trainer-1.0.dist-info"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("trainer/__init__.py", "")
        archive.writestr("trainer/task.py", TRAINER)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: trainer\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return data.getvalue()


@pytest.fixture(scope="module")
def hook(service: Service) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        extra = {"service": "local", "api_endpoint": service.url, "deployment": "test"}
        connection = {"conn_type": "aiptraining", "extra": extra}
        patch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", json.dumps(connection))
        hook = AIPTrainingHook(CONN)
        bucket = hook.get_storage_client().create_bucket(BUCKET)
        bucket.blob("packages/trainer-1.0-py3-none-any.whl").upload_from_string(wheel())
        yield hook


def submit(hook: Any, job_id: str, job_dir: str, *args: str) -> str:
    hook.get_service().create_job(
        {
            "jobId": job_id,
            "labels": {"airflow-owner": "0" * 32, "airflow-spec": "5bec"},
            "trainingInput": {
                "region": "us-central1",
                "scaleTier": "BASIC",
                "runtimeVersion": "2.11",
                "pythonVersion": "3.7",
                "packageUris": [f"gs://{BUCKET}/packages/trainer-1.0-py3-none-any.whl"],
                "pythonModule": "trainer.task",
                "args": list(args),
                "jobDir": f"gs://{BUCKET}/{job_dir}",
            },
        }
    )
    return job_id


def gate(job_id: str, **arguments: Any) -> Any:
    sensor = AIPModelExportSensor(
        task_id="gate", job_id=job_id, gcp_conn_id=CONN, poke_interval=0.2, timeout=120, **arguments
    )
    return sensor.execute({})


def test_a_real_jobs_model_is_gated_and_exported(hook: Any) -> None:
    job_id = submit(hook, "census_20261114_000000", "one", "--accuracy=0.93")
    verdict = gate(job_id, conditions=["accuracy >= 0.9"])
    export = AIPModelExportOperator(
        task_id="export", export_dir=f"gs://{BUCKET}/models", gate=verdict, gcp_conn_id=CONN
    )
    result = export.execute({"outlet_events": OutletEventAccessors()})
    assert result["is_latest"] is True
    assert result["metrics"] == {"accuracy": 0.93}
    blob = hook.get_storage_client().bucket(BUCKET).blob(f"models/{job_id}/model.joblib")
    assert blob.download_as_bytes() == b"an estimator"


def test_a_real_second_attempt_that_writes_nothing_does_not_pass(hook: Any) -> None:
    first = submit(hook, "census_20261115_000000", "two", "--accuracy=0.93")
    assert gate(first)["objects"][0]["name"] == "model.joblib"
    # The API cuts its times to whole seconds, so the second attempt begins in another one.
    model = hook.get_storage_client().bucket(BUCKET).get_blob("two/model.joblib")
    while time.time() < int(model.time_created.timestamp()) + 1:
        time.sleep(0.01)
    second = submit(hook, "census_20261115_000000_a002", "two")
    with pytest.raises(AirflowFailException, match="written before the job was created"):
        gate(second, grace_period=0.5)


def test_a_real_job_that_fails_fails_the_gate_at_once(hook: Any) -> None:
    job_id = submit(hook, "census_20261116_000000", "three", "--accuracy=high")
    with pytest.raises(AirflowFailException, match=f"{job_id}' ended FAILED, .* master"):
        gate(job_id)


def test_the_newest_real_attempt_is_found_by_base_and_date(hook: Any) -> None:
    submit(hook, "other_20261117_000000", "four/1", "--accuracy=0.5")
    submit(hook, "other_20261117_000000_a002", "four/2", "--accuracy=0.6")
    sensor = AIPModelExportSensor(
        task_id="gate",
        job_id_base="other",
        logical_date="2026-11-17T00:00:00Z",
        gcp_conn_id=CONN,
        poke_interval=0.2,
        timeout=120,
    )
    verdict = sensor.execute({})
    assert (verdict["attempt"], verdict["metrics"]) == (2, {"accuracy": 0.6})
