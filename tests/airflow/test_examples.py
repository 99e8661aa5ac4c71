"""The example DAGs on a real Airflow and the embedded service."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from cluster import AirflowCluster
from processes import wait_for
from service import EmbeddedService

BUCKET = "test-bucket"
EXAMPLES = (
    "retrain_daily",
    "deploy_breast_cancer",
    "retrain_with_params",
    "wait_for_daily_training",
    "wait_for_job",
)


@dataclass(frozen=True)
class Backfill:
    """Three dates of ``retrain_daily``, done; the last is today."""

    dates: list[date]
    run_ids: list[str]

    @property
    def job_ids(self) -> list[str]:
        return [f"breast_cancer_{day:%Y%m%d}_000000" for day in self.dates]


@pytest.fixture(scope="module")
def backfill(airflow: AirflowCluster) -> Backfill:
    """A backfill of three dates, with the deploy DAG listening."""
    today = datetime.now(UTC).date()
    dates = [today - timedelta(days) for days in (2, 1, 0)]
    airflow.api.wait_for_dags(EXAMPLES)
    span = ["--from-date", str(dates[0]), "--to-date", str(dates[-1])]
    # Today's run must be the backfill's, so it is made before the scheduler may make one.
    airflow.run_cli(["backfill", "create", "--dag-id", "retrain_daily", *span])
    airflow.api.unpause("deploy_breast_cancer")
    airflow.api.unpause("retrain_daily")
    run_ids = [f"backfill__{day}T00:00:00+00:00" for day in dates]
    for run_id in run_ids:
        succeed(airflow, "retrain_daily", run_id, timeout=240)
    return Backfill(dates, run_ids)


def succeed(airflow: AirflowCluster, dag_id: str, run_id: str, timeout: float = 180) -> None:
    """Wait until a run has succeeded; show the log of the task that didn't."""
    run = airflow.api.wait_for_run(dag_id, run_id, timeout=timeout)
    if run["state"] != "success":
        logs = [
            f"{ti['task_id']}:\n{airflow.api.log(dag_id, run_id, ti['task_id'], ti['try_number'])}"
            for ti in airflow.api.task_instances(dag_id, run_id)
            if ti["state"] == "failed"
        ]
        pytest.fail("\n".join([f"{dag_id} {run_id} is {run['state']}", *logs]), pytrace=False)


def stored(service: EmbeddedService, name: str) -> dict[str, Any]:
    """Return a JSON object of the bucket."""
    return dict(json.loads(service.storage_client().bucket(BUCKET).blob(name).download_as_bytes()))


def job(service: EmbeddedService, job_id: str) -> dict[str, Any]:
    """Return a job as the service tells it."""
    return next(job for job in service.jobs() if job["jobId"] == job_id)


def jobs_of(service: EmbeddedService, *beginnings: str) -> dict[str, str]:
    """Return id and state of the jobs whose ids begin like this, by id."""
    jobs = {job["jobId"]: job["state"] for job in service.jobs()}
    return {name: jobs[name] for name in sorted(jobs) if name.startswith(beginnings)}


def deployments(airflow: AirflowCluster, job_id: str) -> list[str]:
    """Return what the runs of the deploy DAG said, once one was told of this export.

    Airflow may drop an asset event that comes just as it starts a run for another one (the queue
    has one row for each asset, and keeps the first event's time), so the last export's run may be
    an earlier export's as well: what counts is what is deployed.
    """

    def said() -> list[str] | None:
        runs = airflow.api.runs("deploy_breast_cancer")
        if not runs or any(run["state"] != "success" for run in runs):
            return None
        results = [
            airflow.api.xcom("deploy_breast_cancer", run["dag_run_id"], "deploy") for run in runs
        ]
        return results if any(job_id in result for result in results) else None

    return wait_for(
        said,
        timeout=90,
        what=lambda: f"{job_id} to be deployed: {airflow.api.runs('deploy_breast_cancer')}",
    )


def test_every_example_is_parsed_without_error(airflow: AirflowCluster) -> None:
    airflow.api.wait_for_dags(EXAMPLES)

    assert airflow.api.import_errors() == ""


def test_trainers_and_demo_are_not_parsed_as_dags(airflow: AirflowCluster) -> None:
    airflow.api.wait_for_dags(EXAMPLES)
    files = {dag["relative_fileloc"] for dag in airflow.api.get("/dags", limit=100)["dags"]}

    assert "retrain_daily.py" in files
    assert [file for file in files if "/" in file] == []


def test_each_backfilled_date_has_one_job_named_by_its_date(
    service: EmbeddedService, backfill: Backfill
) -> None:
    assert jobs_of(service, *backfill.job_ids) == dict.fromkeys(backfill.job_ids, "SUCCEEDED")


def test_each_date_trains_on_the_rows_known_by_then(
    airflow: AirflowCluster, backfill: Backfill
) -> None:
    rows = [
        airflow.api.xcom("retrain_daily", run_id, "gate")["metrics"]["rows"]
        for run_id in backfill.run_ids
    ]

    assert rows == [min(569, 100 + (day - date(2026, 1, 1)).days) for day in backfill.dates]


def test_the_trainer_is_built_once_for_all_dates(
    service: EmbeddedService, backfill: Backfill
) -> None:
    packages = {
        uri
        for job_id in backfill.job_ids
        for uri in job(service, job_id)["trainingInput"]["packageUris"]
    }

    assert len(packages) == 1


def test_every_date_is_exported_whole(
    airflow: AirflowCluster, service: EmbeddedService, backfill: Backfill
) -> None:
    bucket = service.storage_client().bucket(BUCKET)
    for run_id, job_id in zip(backfill.run_ids, backfill.job_ids, strict=True):
        export = airflow.api.xcom("retrain_daily", run_id, "export")
        folder = f"models/breast_cancer/{job_id}/"
        manifest = stored(service, f"{folder}manifest.json")

        assert export["model_uri"] == f"gs://{BUCKET}/{folder}"
        assert manifest["job_id"] == job_id
        assert manifest["metrics"]["accuracy"] >= 0.9
        assert "model.joblib" in [file["name"] for file in manifest["files"]]
        for file in manifest["files"]:
            blob = bucket.get_blob(f"{folder}{file['name']}")
            assert blob is not None and blob.size == file["size"]


def test_the_last_date_is_the_latest(service: EmbeddedService, backfill: Backfill) -> None:
    assert stored(service, "models/breast_cancer/latest.json")["job_id"] == backfill.job_ids[-1]


def test_each_export_is_an_asset_event(airflow: AirflowCluster, backfill: Backfill) -> None:
    events = {event["extra"]["job_id"]: event for event in airflow.api.asset_events()}

    assert set(backfill.job_ids) <= set(events)
    assert events[backfill.job_ids[-1]]["extra"]["is_latest"] is True


def test_the_latest_model_is_deployed_once(
    airflow: AirflowCluster, service: EmbeddedService, backfill: Backfill
) -> None:
    newest = backfill.job_ids[-1]
    said = deployments(airflow, newest)

    assert stored(service, "deployed/breast_cancer.json")["job_id"] == newest
    assert said.count(f"deployed {newest}") == 1


def test_an_earlier_date_is_exported_but_not_deployed(
    airflow: AirflowCluster, service: EmbeddedService, backfill: Backfill
) -> None:
    newest = backfill.job_ids[-1]
    deployments(airflow, newest)
    runs_before = len(airflow.api.runs("deploy_breast_cancer"))
    earlier = backfill.dates[0] - timedelta(7)
    run_id = airflow.api.trigger("retrain_daily", logical_date=f"{earlier}T00:00:00Z")
    succeed(airflow, "retrain_daily", run_id)
    wait_for(
        lambda: len(airflow.api.runs("deploy_breast_cancer")) > runs_before,
        timeout=60,
        what="a run of the deploy DAG",
    )
    said = deployments(airflow, newest)

    export = airflow.api.xcom("retrain_daily", run_id, "export")
    job_id = export["job_id"]
    assert job_id.startswith(f"breast_cancer_{earlier:%Y%m%d}_000000_r")
    assert export["is_latest"] is False
    assert stored(service, f"models/breast_cancer/{job_id}/manifest.json")["job_id"] == job_id
    assert said[-1] == f"{newest} is deployed already"
    assert stored(service, "models/breast_cancer/latest.json")["job_id"] == newest
    assert stored(service, "deployed/breast_cancer.json")["job_id"] == newest


def test_a_sensor_finds_the_job_of_its_own_date(
    airflow: AirflowCluster, backfill: Backfill
) -> None:
    day = backfill.dates[1]
    airflow.api.unpause("wait_for_daily_training")
    run_id = airflow.api.trigger("wait_for_daily_training", logical_date=f"{day}T00:00:00Z")
    succeed(airflow, "wait_for_daily_training", run_id)

    assert backfill.job_ids[1] in airflow.api.log("wait_for_daily_training", run_id, "wait")


def test_a_sensor_waits_for_a_job_by_its_id(airflow: AirflowCluster, backfill: Backfill) -> None:
    airflow.api.unpause("wait_for_job")
    run_id = airflow.api.trigger("wait_for_job", conf={"job_id": backfill.job_ids[0]})
    succeed(airflow, "wait_for_job", run_id)


def test_the_trigger_form_changes_the_job(
    airflow: AirflowCluster, service: EmbeddedService
) -> None:
    airflow.api.wait_for_dags(["retrain_with_params"])
    airflow.api.unpause("retrain_with_params")
    conf = {"scale_tier": "CUSTOM", "master_type": "n1-highmem-8", "regularization": 100}
    run_id = airflow.api.trigger("retrain_with_params", conf=conf)
    succeed(airflow, "retrain_with_params", run_id)

    result = airflow.api.xcom("retrain_with_params", run_id, "train")
    training_input = job(service, result["job_id"])["trainingInput"]
    assert training_input["scaleTier"] == "CUSTOM"
    assert training_input["masterType"] == "n1-highmem-8"
    assert training_input["args"][-2:] == ["--regularization", "100"]


def test_a_run_without_a_logical_date_trains_and_exports(
    airflow: AirflowCluster, backfill: Backfill
) -> None:
    run_id = airflow.api.trigger("retrain_daily", logical_date=None)
    succeed(airflow, "retrain_daily", run_id)

    assert airflow.api.run("retrain_daily", run_id)["logical_date"] is None
    job_id = airflow.api.xcom("retrain_daily", run_id, "train")["job_id"]
    assert re.fullmatch(r"breast_cancer_\d{8}_\d{6}_r[0-9a-f]{8}", job_id)
    assert airflow.api.xcom("retrain_daily", run_id, "export")["job_id"] == job_id


def test_a_failed_job_fails_its_task_with_the_reason(
    airflow: AirflowCluster, service: EmbeddedService
) -> None:
    airflow.api.wait_for_dags(["always_fails"])
    airflow.api.unpause("always_fails")
    run_id = airflow.api.trigger("always_fails")

    assert airflow.api.wait_for_run("always_fails", run_id)["state"] == "failed"
    log = airflow.api.log("always_fails", run_id, "train")
    assert "ended FAILED" in log
    assert "the data of today is unreadable" in log
    assert list(jobs_of(service, "always_fails").values()) == ["FAILED"]


def test_a_retry_after_a_failed_job_submits_the_next_attempt(
    airflow: AirflowCluster, service: EmbeddedService
) -> None:
    airflow.api.wait_for_dags(["fails_once"])
    airflow.api.unpause("fails_once")
    run_id = airflow.api.trigger("fails_once")
    succeed(airflow, "fails_once", run_id)

    jobs = jobs_of(service, "fails_once")
    first, second = jobs
    assert second == f"{first}_a002"
    assert list(jobs.values()) == ["FAILED", "SUCCEEDED"]
    assert airflow.api.xcom("fails_once", run_id, "train")["job_id"] == second
