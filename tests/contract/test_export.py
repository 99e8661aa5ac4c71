"""The gate and the export, as tasks run them, against the embedded service's storage."""

from __future__ import annotations

import json
import multiprocessing
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
)
from airflow.sdk.execution_time.context import OutletEventAccessors
from google.cloud.storage import Bucket, Client

from airflow_aiptraining.core.gates import utc
from airflow_aiptraining.exceptions import JobNotFoundError, TransientServiceError
from airflow_aiptraining.hooks import storage
from airflow_aiptraining.hooks.training import AIPTrainingHook
from airflow_aiptraining.operators.export import AIPModelExportOperator
from airflow_aiptraining.sensors.model_export import AIPModelExportSensor

CONN = "aiptraining_contract"
SAVED_MODEL = {
    "saved_model.pb": b"graph",
    "variables/variables.index": b"index",
    "variables/variables.data-00000-of-00001": b"weights",
}
SKLEARN = {"model.joblib": b"estimator", "metrics.json": b'{"accuracy": 0.93, "loss": 0.2}'}
OWNED = {"airflow-owner": "0" * 32, "airflow-spec": "5bec"}


@pytest.fixture(autouse=True)
def connection(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"service": "local", "api_endpoint": service.url, "deployment": "test"}
    monkeypatch.setenv(
        f"AIRFLOW_CONN_{CONN.upper()}", json.dumps({"conn_type": "aiptraining", "extra": extra})
    )


@pytest.fixture
def bucket(connection: None, request: pytest.FixtureRequest) -> Bucket:
    name = f"export-{abs(hash(request.node.nodeid)):x}"
    return AIPTrainingHook(CONN).get_storage_client().create_bucket(name)


class Jobs:
    """Finished jobs, by hand: their states and times are the point, not the training."""

    project_id = "local"

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.away = False

    def get_job(self, job_id: str) -> dict[str, Any]:
        if self.away:
            raise TransientServiceError("Reading the job: no answer")
        if job_id not in self.jobs:
            raise JobNotFoundError(f"Reading job {job_id!r}: HTTP 404")
        return self.jobs[job_id]


class StateStore:
    """Airflow's store of a task's state, in a dict."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.get, self.set = values.get, values.__setitem__


class NeverRescheduled:
    """A task instance at its first poke."""

    def get_first_reschedule_date(self, _: Any) -> None:
        return None


class Team:
    """What a team has: a bucket, jobs, and a DAG with a gate and an export."""

    def __init__(self, bucket: Bucket, jobs: Jobs) -> None:
        self.bucket = bucket
        self.jobs = jobs
        self.root = f"gs://{bucket.name}"

    def start(self, job_id: str, *, job_dir: str = "out", **facts: Any) -> dict[str, Any]:
        """Create a job that is over at once, in job_dir; what is written from now on is its own."""
        now = utc(datetime.now(UTC))
        uri = f"{self.root}/{job_dir}" if job_dir else None
        job = {
            "jobId": job_id,
            "state": "SUCCEEDED",
            "createTime": now,
            "endTime": now,
            "trainingInput": {"jobDir": uri} if uri else {},
            "labels": OWNED,
            **facts,
        }
        self.jobs.jobs[job_id] = job
        return job

    def write(self, files: dict[str, bytes], folder: str = "out") -> None:
        for name, data in files.items():
            self.bucket.blob(f"{folder}/{name}").upload_from_string(data)

    def train(self, job_id: str, files: dict[str, bytes], *, job_dir: str = "out") -> None:
        """Run a job that writes ``files``."""
        job = self.start(job_id, job_dir=job_dir)
        self.write(files, job_dir)
        job["endTime"] = utc(datetime.now(UTC) + timedelta(seconds=1))

    def sensor(self, job_id: Any = None, **arguments: Any) -> AIPModelExportSensor:
        sensor = AIPModelExportSensor(
            task_id="gate", job_id=job_id, gcp_conn_id=CONN, settle_time=0, **arguments
        )
        sensor.hook.get_service = lambda *_, **__: self.jobs  # type: ignore[assignment,method-assign]
        return sensor

    def look(self, job_id: Any = None, **arguments: Any) -> dict[str, Any] | None:
        """Poke once; return the verdict, or None for "not yet"."""
        result = self.sensor(job_id, **arguments).poke(context())
        assert result.is_done is (result.xcom_value is not None)
        verdict: dict[str, Any] | None = result.xcom_value
        assert json.loads(json.dumps(verdict, allow_nan=False)) == verdict
        return verdict

    def export(self, gate: Any, **arguments: Any) -> dict[str, Any]:
        return exporter(self.root, gate, **arguments).execute(context())

    def gate_and_export(self, job_id: str, **arguments: Any) -> dict[str, Any]:
        return self.export(self.look(job_id), **arguments)

    def read(self, name: str) -> Any:
        return json.loads(self.bucket.blob(name).download_as_bytes())

    def state(self, prefix: str = "models/") -> dict[str, int]:
        """Return what is exported, by generation: a rewritten object shows."""
        return {blob.name: blob.generation for blob in self.bucket.list_blobs(prefix=prefix)}


def exporter(root: str, gate: Any, **arguments: Any) -> AIPModelExportOperator:
    return AIPModelExportOperator(
        task_id="export", export_dir=f"{root}/models", gate=gate, gcp_conn_id=CONN, **arguments
    )


def context(**facts: Any) -> Any:
    return {"outlet_events": OutletEventAccessors(), **facts}


@pytest.fixture
def team(bucket: Bucket) -> Team:
    return Team(bucket, Jobs())


# --- the gate -----------------------------------------------------------------------------------


def test_a_whole_new_model_passes(team: Team) -> None:
    team.train("census_20261114_000000", SKLEARN)
    verdict = team.look("census_20261114_000000", conditions=["accuracy >= 0.9", "loss < 0.5"])
    assert verdict is not None
    assert verdict["model_uri"] == f"{team.root}/out/"
    assert [part["name"] for part in verdict["objects"]] == ["model.joblib"]
    assert verdict["metrics"] == {"accuracy": 0.93, "loss": 0.2}
    assert verdict["logical_date"] == "2026-11-14T00:00:00Z"
    assert (verdict["attempt"], verdict["spec"]) == (1, "5bec")


def test_an_attempt_that_wrote_nothing_does_not_pass_on_its_predecessors_files(team: Team) -> None:
    team.train("census_20261114_000000", SKLEARN)
    team.start("census_20261114_000000_a002")
    assert team.look("census_20261114_000000_a002") is None
    with pytest.raises(AirflowFailException, match="written before the job was created"):
        team.look("census_20261114_000000_a002", grace_period=-1)


@pytest.mark.parametrize("written", ["model.joblib", "metrics.json"])
def test_a_later_job_in_the_same_job_dir_does_not_lend_its_files(team: Team, written: str) -> None:
    """Two dates share a job_dir; the second wrote over the first's files before its gate looked."""
    team.train("a_1", SKLEARN)
    team.jobs.jobs["a_1"]["endTime"] = utc(datetime.now(UTC))
    deadline = time.monotonic() + 10
    while team.jobs.jobs["a_1"]["endTime"] > utc(datetime.now(UTC) - timedelta(seconds=1.5)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    team.write({written: SKLEARN[written]})

    with pytest.raises(AirflowFailException, match=r"by another job.*\{job_id\} into job_dir"):
        team.look("a_1", conditions="accuracy >= 0.9")


def test_metrics_of_an_earlier_attempt_do_not_count(team: Team) -> None:
    team.train("a_1", SKLEARN)
    team.train("a_2", {"model.joblib": b"worse"})
    with pytest.raises(AirflowFailException, match=r"metrics\.json was written before the job"):
        team.look("a_2", conditions="accuracy >= 0.9", grace_period=-1)


def test_a_saved_model_without_variables_does_not_pass(team: Team) -> None:
    team.train("a_1", {"saved_model.pb": b"graph"})
    with pytest.raises(AirflowFailException, match="SavedModel without its variables"):
        team.look("a_1", grace_period=-1)
    team.write(SAVED_MODEL)
    verdict = team.look("a_1")
    assert verdict is not None
    assert [part["name"] for part in verdict["objects"]] == sorted(SAVED_MODEL)


@pytest.mark.parametrize("state", ["QUEUED", "PREPARING", "RUNNING", "CANCELLING", "A_NEW_WORD"])
def test_a_job_that_has_not_ended_is_waited_for(team: Team, state: str) -> None:
    team.train("a_1", SKLEARN)
    team.jobs.jobs["a_1"]["state"] = state
    assert team.look("a_1") is None


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED"])
def test_a_job_that_did_not_succeed_fails_the_gate_with_its_reason(team: Team, state: str) -> None:
    team.train("a_1", SKLEARN)
    team.jobs.jobs["a_1"] |= {"state": state, "errorMessage": "The replica master 0 exited."}
    with pytest.raises(AirflowFailException, match=f"'a_1' ended {state}.*replica master 0 exited"):
        team.look("a_1")


def test_a_failed_condition_fails_or_skips_and_says_why(team: Team) -> None:
    team.train("a_1", SKLEARN)
    told = r"accuracy is 0\.93 in gs://.*/out/metrics\.json of job 'a_1'; accuracy >= 0\.95"
    with pytest.raises(AirflowFailException, match=told):
        team.look("a_1", conditions=["accuracy >= 0.95"])
    with pytest.raises(AirflowSkipException, match=told):
        team.look("a_1", conditions=["accuracy >= 0.95"], on_failed_condition="skip")


def test_a_metric_that_is_not_there_is_never_a_skip(team: Team) -> None:
    team.train("a_1", SKLEARN)
    with pytest.raises(AirflowFailException, match="has no 'acuracy'"):
        team.look("a_1", conditions=["acuracy >= 0.95"], on_failed_condition="skip")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"accuracy=1", "is not JSON"),
        (b"", "is not JSON"),
        (b" " * 1_000_001, "larger than 1,000,000 bytes"),
    ],
    ids=["text", "empty", "too large"],
)
def test_a_metrics_file_that_is_none_is_told(team: Team, data: bytes, message: str) -> None:
    team.train("a_1", {**SKLEARN, "metrics.json": data})
    with pytest.raises(AirflowFailException, match=message):
        team.look("a_1", conditions="accuracy >= 0.9")
    assert team.look("a_1") is not None, "without conditions nobody asks for metrics"


def test_a_zipped_metrics_file_is_read(team: Team) -> None:
    import gzip

    team.train("a_1", SKLEARN)
    blob = team.bucket.blob("out/metrics.json")
    blob.content_encoding = "gzip"
    blob.upload_from_string(gzip.compress(b'{"accuracy": 0.99}'))
    verdict = team.look("a_1", conditions="accuracy >= 0.98")
    assert verdict is not None and verdict["metrics"] == {"accuracy": 0.99}


def test_missing_metrics_are_waited_for_then_fail(team: Team) -> None:
    team.train("a_1", {"model.joblib": b"x"})
    assert team.look("a_1", conditions="accuracy >= 0.9") is None
    with pytest.raises(AirflowFailException, match=r"there is no gs://.*/out/metrics\.json"):
        team.look("a_1", conditions="accuracy >= 0.9", grace_period=-1)


def test_a_tuning_job_passes_its_best_trial(team: Team) -> None:
    trials = [
        {"trialId": "1", "state": "SUCCEEDED", "finalMetric": {"objectiveValue": 0.7}},
        {"trialId": "2", "state": "SUCCEEDED", "finalMetric": {"objectiveValue": 0.9}},
        {"trialId": "3", "state": "FAILED"},
    ]
    job = team.start("tune_1", trainingOutput={"trials": trials})
    job["trainingInput"]["hyperparameters"] = {
        "goal": "MAXIMIZE",
        "hyperparameterMetricTag": "accuracy",
    }
    team.write({"model.joblib": b"one"}, "out/1")
    team.write({"model.joblib": b"two"}, "out/2")
    verdict = team.look("tune_1", conditions="accuracy >= 0.8")
    assert verdict is not None
    assert (verdict["trial_id"], verdict["model_uri"]) == ("2", f"{team.root}/out/2/")
    assert verdict["metrics"] == {"accuracy": 0.9}


def test_a_model_outside_job_dir_is_named(team: Team) -> None:
    team.start("a_1", job_dir="")
    with pytest.raises(AirflowFailException, match=r"no jobDir.*model_uri"):
        team.look("a_1")
    team.write({"net.onnx": b"x", "metrics.json": b'{"a": 1}'}, "elsewhere/a_1")
    verdict = team.look(
        "a_1", model_uri=f"{team.root}/elsewhere/{{job_id}}", model_files="*.onnx", conditions="a>0"
    )
    assert verdict is not None and verdict["model_uri"] == f"{team.root}/elsewhere/a_1/"


def test_a_model_that_is_still_written_to_is_waited_for(team: Team) -> None:
    team.start("a_1")
    team.write(SKLEARN)
    sensor = team.sensor("a_1")
    sensor.settle_time = 3600
    assert sensor.poke(context()).is_done is False


def test_the_newest_attempt_of_a_date_is_looked_at(team: Team) -> None:
    arguments = {"job_id_base": "census", "logical_date": "2026-11-14T00:00:00+00:00"}
    assert team.look(**arguments) is None, "there is no job yet"
    team.train("census_20261114_000000", SKLEARN, job_dir="one")
    team.train("census_20261114_000000_a002", SKLEARN, job_dir="two")
    verdict = team.look(**arguments)
    assert verdict is not None
    assert (verdict["job_id"], verdict["attempt"]) == ("census_20261114_000000_a002", 2)
    team.train("census_20261114_000000_a003", {}, job_dir="three")
    team.jobs.jobs["census_20261114_000000_a003"]["state"] = "RUNNING"
    assert team.look(**arguments) is None


def test_an_unknown_job_id_is_not_waited_for(team: Team) -> None:
    with pytest.raises(AirflowFailException, match="'typo'"):
        team.look("typo")


def test_a_service_that_is_away_is_waited_for(
    team: Team, capsys: pytest.CaptureFixture[str]
) -> None:
    team.jobs.away = True
    sensor = team.sensor("a_1")
    assert sensor.poke(context()).is_done is False
    assert sensor.poke(context()).is_done is False
    since = re.findall(r"No answer since (\S+),", capsys.readouterr().out)
    assert len(since) == 2 and since[0] == since[1]


def test_a_rescheduled_sensor_remembers_since_when_the_service_is_away(
    team: Team, capsys: pytest.CaptureFixture[str]
) -> None:
    team.jobs.away = True
    store: dict[str, Any] = {}
    for _ in range(2):
        poke = context(task_state_store=StateStore(store))
        assert team.sensor("a_1", mode="reschedule").poke(poke).is_done is False
    since = re.findall(r"No answer since (\S+),", capsys.readouterr().out)
    assert len(since) == 2 and since[0] == since[1]


def test_the_sensor_pokes_until_the_job_has_ended(team: Team) -> None:
    team.train("a_1", SKLEARN)
    states = iter(["QUEUED", "RUNNING", "SUCCEEDED"])
    look_up = team.jobs.get_job
    team.jobs.get_job = lambda job_id: {**look_up(job_id), "state": next(states)}  # type: ignore[method-assign]
    verdict = team.sensor("a_1", poke_interval=0, timeout=60).execute(context())
    assert verdict["job_id"] == "a_1"
    assert next(states, None) is None


def test_a_rescheduled_sensor_passes_in_another_process(team: Team) -> None:
    team.train("a_1", SKLEARN)
    task_instance = NeverRescheduled()
    team.jobs.jobs["a_1"]["state"] = "RUNNING"
    with pytest.raises(AirflowRescheduleException):
        team.sensor("a_1", mode="reschedule").execute(context(ti=task_instance))
    team.jobs.jobs["a_1"]["state"] = "SUCCEEDED"
    verdict = team.sensor("a_1", mode="reschedule").execute(context(ti=task_instance))
    assert verdict["job_id"] == "a_1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "job_id"),
        ({"job_id": "a", "job_id_base": "b"}, "job_id"),
        ({"job_id": "a", "conditions": ["accuracy => 0.9"]}, "can't be read"),
    ],
)
def test_mistakes_are_told_when_the_dag_is_parsed(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AIPModelExportSensor(task_id="gate", **arguments)


def test_a_condition_may_be_a_template(team: Team) -> None:
    sensor = team.sensor("a_1", conditions=["accuracy >= {{ params.bar }}"])
    sensor.render_template_fields(context(params={"bar": 0.9}))
    team.train("a_1", SKLEARN)
    verdict = sensor.poke(context()).xcom_value
    assert verdict is not None and verdict["conditions"] == ["accuracy >= 0.9"]


def test_the_result_of_the_training_task_names_the_job(team: Team) -> None:
    team.train("a_1", SKLEARN)
    verdict = team.look({"job_id": "a_1", "project_id": "local", "state": "SUCCEEDED"})
    assert verdict is not None and verdict["job_id"] == "a_1"


def test_a_missing_bucket_fails_at_once(team: Team) -> None:
    team.start("a_1")["trainingInput"]["jobDir"] = "gs://no-such-bucket-here/x"
    with pytest.raises(AirflowFailException, match=r"gs://no-such-bucket-here/x/.*doesn't exist"):
        team.look("a_1")


# --- the export ---------------------------------------------------------------------------------


def test_an_export_holds_the_model_a_manifest_and_becomes_the_latest(team: Team) -> None:
    team.train("census_20261114_000000", {**SAVED_MODEL, "metrics.json": b'{"accuracy": 0.9}'})
    result = team.gate_and_export("census_20261114_000000")
    folder = f"{team.root}/models/census_20261114_000000/"
    assert result == {
        "job_id": "census_20261114_000000",
        "project_id": "local",
        "model_uri": folder,
        "manifest_uri": f"{folder}manifest.json",
        "source_uri": f"{team.root}/out/",
        "is_latest": True,
        "metrics": {"accuracy": 0.9},
        "logical_date": "2026-11-14T00:00:00Z",
        "attempt": 1,
        "spec": "5bec",
    }
    manifest = team.read("models/census_20261114_000000/manifest.json")
    assert [part["name"] for part in manifest["files"]] == sorted(SAVED_MODEL)
    for name, data in SAVED_MODEL.items():
        copy = team.bucket.blob(f"models/census_20261114_000000/{name}")
        assert copy.download_as_bytes() == data
    assert team.read("models/latest.json")["manifest_uri"] == result["manifest_uri"]


def test_running_again_changes_nothing_and_returns_the_same(team: Team) -> None:
    team.train("census_20261114_000000", SKLEARN)
    verdict = team.look("census_20261114_000000")
    result, before = team.export(verdict), team.state()
    assert team.export(verdict) == result
    assert team.state() == before


def test_a_generation_that_was_replaced_since_the_gate_is_not_exported(team: Team) -> None:
    team.train("a_1", SKLEARN)
    verdict = team.look("a_1")
    assert verdict is not None
    team.write({"model.joblib": b"another"})
    generation = verdict["objects"][0]["generation"]
    with pytest.raises(
        AirflowFailException, match=rf"job 'a_1'.*/out/model\.joblib \(generation {generation}"
    ):
        team.export(verdict)
    assert "models/a_1/manifest.json" not in team.state()
    assert "models/latest.json" not in team.state()


def test_an_export_that_was_killed_before_its_manifest_is_completed(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    team.train("a_1", SAVED_MODEL)
    verdict = team.look("a_1")

    class Killed(BaseException):
        pass

    def kill(*_: Any) -> bool:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(storage, "write_once", kill)
        team.export(verdict)
    half_done = team.state()
    assert sorted(half_done) == [f"models/a_1/{name}" for name in sorted(SAVED_MODEL)]
    # The sources may be gone by now: what was copied is enough.
    for name in SAVED_MODEL:
        team.bucket.blob(f"out/{name}").delete()
    assert team.export(verdict)["is_latest"] is True
    assert half_done.items() <= team.state().items()


def test_an_export_that_was_killed_before_the_pointer_moved_moves_it(team: Team) -> None:
    team.train("a_1", SKLEARN)
    verdict = team.look("a_1")
    result = team.export(verdict)
    team.bucket.blob("models/latest.json").delete()
    before = team.state()
    assert team.export(verdict) == result
    assert team.state().keys() - before.keys() == {"models/latest.json"}
    assert before.items() <= team.state().items()


def test_a_half_done_export_of_other_bytes_is_refused(team: Team) -> None:
    team.train("a_1", SKLEARN)
    team.write({"model.joblib": b"not this one"}, "models/a_1")
    with pytest.raises(AirflowFailException, match="other contents than generation"):
        team.gate_and_export("a_1")


def test_a_version_never_changes(team: Team) -> None:
    team.train("a_1", SKLEARN)
    team.gate_and_export("a_1")
    before = team.state()
    team.write({"model.joblib": b"changed by hand"})
    with pytest.raises(
        AirflowFailException, match=r"model\.joblib has other contents.*never chang"
    ):
        team.gate_and_export("a_1")
    assert team.state() == before


def test_a_backfill_of_older_dates_leaves_the_latest(team: Team) -> None:
    for date, is_latest in [("20261101", True), ("20260101", False), ("20260201", False)]:
        team.train(f"census_{date}_000000", SKLEARN, job_dir=date)
        assert team.gate_and_export(f"census_{date}_000000")["is_latest"] is is_latest
    assert team.read("models/latest.json")["job_id"] == "census_20261101_000000"
    assert "models/census_20260101_000000/manifest.json" in team.state()


def test_a_date_that_is_trained_again_is_a_new_version(team: Team) -> None:
    team.train("census_20261114_000000", SKLEARN)
    first = team.gate_and_export("census_20261114_000000")
    team.train("census_20261114_000000_a002", {**SKLEARN, "model.joblib": b"better"})
    second = team.gate_and_export("census_20261114_000000_a002")
    assert second["is_latest"] is True
    assert first["model_uri"] != second["model_uri"]
    old = team.bucket.blob("models/census_20261114_000000/model.joblib")
    assert old.download_as_bytes() == b"estimator"


def test_a_job_trained_by_hand_stands_where_it_was_created(team: Team) -> None:
    team.train("census_20261101_000000", SKLEARN, job_dir="november")
    team.gate_and_export("census_20261101_000000")
    job = team.start("my_try", job_dir="mine", labels={}, createTime="2026-10-01T12:00:00Z")
    team.write(SKLEARN, "mine")
    assert team.gate_and_export("my_try")["is_latest"] is False
    team.jobs.jobs["my_next"] = {**job, "jobId": "my_next", "createTime": "2026-11-02T12:00:00Z"}
    team.write(SKLEARN, "mine")
    result = team.gate_and_export("my_next")
    assert (result["is_latest"], result["logical_date"]) == (True, None)


def test_always_moves_the_pointer_back_and_never_leaves_it(team: Team) -> None:
    team.train("census_20261101_000000", SKLEARN, job_dir="november")
    assert team.gate_and_export("census_20261101_000000", promote="never")["is_latest"] is False
    assert "models/latest.json" not in team.state()
    assert team.gate_and_export("census_20261101_000000")["is_latest"] is True
    team.train("census_20260101_000000", SKLEARN, job_dir="january")
    assert team.gate_and_export("census_20260101_000000")["is_latest"] is False
    assert team.gate_and_export("census_20260101_000000", promote="always")["is_latest"] is True
    assert team.read("models/latest.json")["job_id"] == "census_20260101_000000"


def test_a_pointer_that_something_else_wrote_is_not_overwritten(team: Team) -> None:
    team.write({"latest.json": b"{}"}, "models")
    team.train("a_1", SKLEARN)
    with pytest.raises(AirflowFailException, match=r"latest\.json was not written by this oper"):
        team.gate_and_export("a_1")
    assert team.gate_and_export("a_1", promote="always")["is_latest"] is True


def test_a_model_with_a_manifest_of_its_own_is_refused(team: Team) -> None:
    team.train("a_1", {"manifest.json": b"{}"})
    with pytest.raises(AirflowFailException, match=r"a file manifest\.json of its own"):
        team.export(team.look("a_1", model_files="manifest.json"))


@pytest.mark.parametrize("shape", ["dict", "json", "repr"])
def test_the_verdict_comes_in_every_shape_that_a_template_gives(team: Team, shape: str) -> None:
    team.train("a_1", SKLEARN)
    verdict = team.look("a_1")
    gate = {"dict": verdict, "json": json.dumps(verdict), "repr": repr(verdict)}[shape]
    assert team.export(gate)["job_id"] == "a_1"


def test_the_verdict_is_pulled_from_the_task_that_is_named(team: Team) -> None:
    team.train("a_1", SKLEARN)
    verdict = team.look("a_1")

    class TaskInstance:
        def xcom_pull(self, task_ids: str) -> Any:
            return verdict if task_ids == "gate" else None

    operator = exporter(team.root, None, gate_task_id="gate")
    assert operator.execute(context(ti=TaskInstance()))["job_id"] == "a_1"


@pytest.mark.parametrize("gate", ["None", "", {}, "no {json"])
def test_a_gate_without_a_verdict_is_told(team: Team, gate: Any) -> None:
    with pytest.raises(AirflowFailException, match="verdict"):
        team.export(gate)


def test_each_outlet_asset_gets_the_result(team: Team) -> None:
    team.train("census_20261114_000000", SKLEARN)
    model, report = Asset(name="model", uri="gs://x/model"), Asset("report")
    operator = exporter(team.root, team.look("census_20261114_000000"), outlets=[model, report])
    events = context()
    result = operator.execute(events)
    assert events["outlet_events"][model].extra == result
    assert events["outlet_events"][report].extra == result
    assert {"job_id", "logical_date", "spec", "metrics", "model_uri", "is_latest"} <= set(result)


def _export_in_a_process(root: str, verdict: dict[str, Any], barrier: Any, results: Any) -> None:
    operator = exporter(root, verdict)
    client: Client = operator.hook.get_storage_client()
    client.bucket("warm").exists()  # so that both are equally far
    barrier.wait(60)
    results.put(operator.execute(context()))


def _race(root: str, verdicts: list[Any]) -> list[dict[str, Any]]:
    fork = multiprocessing.get_context("fork")
    barrier, results = fork.Barrier(len(verdicts)), fork.Queue()
    processes = [
        fork.Process(target=_export_in_a_process, args=(root, verdict, barrier, results))
        for verdict in verdicts
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)
    return found


def test_of_two_exports_that_race_the_newer_date_is_the_latest(team: Team) -> None:
    for round_ in range(5):
        ids = [f"r{round_}_{date}_000000" for date in ("20260101", "20260202")]
        for job_id in ids:
            team.train(job_id, SKLEARN, job_dir=job_id)
        verdicts = [team.look(job_id) for job_id in ids]
        results = _race(f"{team.root}/r{round_}", verdicts)
        assert team.read(f"r{round_}/models/latest.json")["job_id"] == ids[1]
        assert {result["job_id"]: result["is_latest"] for result in results}[ids[1]] is True


def test_two_exports_of_one_job_that_race_make_one_version(team: Team) -> None:
    team.train("a_1", SAVED_MODEL)
    verdict = team.look("a_1")
    first, second = _race(team.root, [verdict, verdict])
    assert first == second
    assert sorted(team.state()) == [
        *(f"models/a_1/{name}" for name in sorted([*SAVED_MODEL, "manifest.json"])),
        "models/latest.json",
    ]
