"""The training operator's tries, against the embedded service: what runs, what doesn't, and why."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import threading
import time
from collections import UserDict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Param
from airflow.sdk.bases.operator import TriggerFailureReason
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout, TaskDeferralError
from embedded import Service
from google.cloud.storage import Bucket
from processes import wait_for
from tasks import TaskRun
from trainer_trees import make_tree

from airflow_aiptraining.core.attempts import OWNER
from airflow_aiptraining.exceptions import (
    JobFailedError,
    JobTimeoutError,
    StaleTryError,
    TransientServiceError,
)
from airflow_aiptraining.hooks.training import AIPTrainingHook
from airflow_aiptraining.operators import awaited_job, training_job
from airflow_aiptraining.operators.cancel import AIPCancelTrainingJobOperator
from airflow_aiptraining.operators.package import AIPPackageTrainerOperator
from airflow_aiptraining.operators.trainer import Trainer
from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator
from airflow_aiptraining.services.ml_v1 import MLv1Service
from airflow_aiptraining.triggers.given_up import task_was_given_up

CONN = "aiptraining_operator"
TRAINER = {
    "trainer/__init__.py": "",
    "trainer/task.py": """
        import argparse, os, signal, sys, time
        parser = argparse.ArgumentParser()
        parser.add_argument("--do", default="")
        parser.add_argument("--job-dir", default="")
        args, rest = parser.parse_known_args()
        print("doing", args.do or "nothing", *rest, flush=True)
        if args.do == "fail":
            raise RuntimeError("no convergence after 3 epochs")
        if args.do == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if args.do == "hang":
            time.sleep(600)
        if args.do == "refuse":
            argparse.ArgumentParser().parse_args(["--job-dir", args.job_dir])
    """,
}
_numbers = itertools.count()


@pytest.fixture
def hook(service: Service, monkeypatch: pytest.MonkeyPatch) -> AIPTrainingHook:
    extra = {"service": "local", "api_endpoint": service.url, "region": "europe-west1"}
    monkeypatch.setenv(
        f"AIRFLOW_CONN_{CONN.upper()}", json.dumps({"conn_type": "aiptraining", "extra": extra})
    )
    return AIPTrainingHook(CONN)


@pytest.fixture
def ml(hook: AIPTrainingHook) -> MLv1Service:
    return hook.get_service()


@pytest.fixture
def bucket(hook: AIPTrainingHook) -> Bucket:
    return hook.get_storage_client().create_bucket(f"operator-{next(_numbers)}-{time.time_ns()}")


@pytest.fixture(scope="module")
def dag_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One trainer for all tests: the service installs it once."""
    return make_tree(tmp_path_factory.mktemp("dags"), TRAINER)


@pytest.fixture
def run(dag_folder: Path) -> TaskRun:
    """A task instance of a DAG that no other test has."""
    return TaskRun(dag_folder, dag_id=f"retrain-{next(_numbers)}.eu-{time.time_ns()}")


@pytest.fixture
def train(run: TaskRun, bucket: Bucket, hook: AIPTrainingHook) -> Callable[..., Any]:
    def execute(*args: str, **arguments: Any) -> Any:
        return run.execute(AIPTrainingJobOperator, **arguments_for(bucket, *args, **arguments))

    return execute


def arguments_for(bucket: Bucket, *args: str, **more: Any) -> dict[str, Any]:
    """Return the operator's arguments for a trainer with these ``args``."""
    return {
        "package_path": "trainer",
        "module_name": "trainer.task",
        "job_dir": f"gs://{bucket.name}/jobs/{{job_id}}",
        "args": list(args),
        "gcp_conn_id": CONN,
        "poll_interval": 0.2,
        "deferrable": True,
        **more,
    }


def jobs_of(ml: MLv1Service, run: TaskRun) -> list[tuple[str, str]]:
    """Return (id without its base, state) of every job of this DAG, by id."""
    prefix = run.dag_id.replace("-", "_").replace(".", "_")
    jobs = sorted(ml.list_jobs(f"jobId:{prefix}*"), key=lambda job: str(job["jobId"]))
    return [(job["jobId"].split("_", 5)[-1], job["state"]) for job in jobs]


def wait_for_states(ml: MLv1Service, run: TaskRun, *states: str) -> None:
    """Wait until the DAG's jobs are in these states: a cancel takes its time."""
    wait_for(
        lambda: [state for _, state in jobs_of(ml, run)] == list(states),
        timeout=60,
        what=lambda: f"jobs in the states {states}: {jobs_of(ml, run)}",
    )


def test_job_is_packaged_submitted_awaited_and_told(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, bucket: Bucket
) -> None:
    result = train("--epochs", "3", extra_args=["--seed={{ run_id[:9] }}"], labels={"team": "a"})

    job = ml.get_job(result["job_id"])
    assert result["state"] == job["state"] == "SUCCEEDED"
    assert set(result) == {
        "job_id",
        "project_id",
        "state",
        "create_time",
        "start_time",
        "end_time",
        "consumed_ml_units",
        "price_estimate",
        "best_trial",
        "job_dir",
    }
    assert len(json.dumps(result)) < 2_000
    assert result["job_dir"] == f"gs://{bucket.name}/jobs/{result['job_id']}"
    assert job["trainingInput"]["args"] == ["--epochs", "3", "--seed=scheduled"]
    assert job["trainingInput"]["region"] == "europe-west1"
    assert job["labels"]["team"] == "a"
    assert run.xcoms["job_id"] == result["job_id"]
    assert result["job_id"] in run.xcoms["_link_AIPTrainingJobLink"]
    origins = run.xcoms["training_job"]["origins"]
    assert origins["trainingInput.region"] == f"connection {CONN}"
    assert origins["trainingInput.args[2]"] == "argument extra_args"


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferrable", "in the worker"])
def test_failed_job_fails_the_task_with_its_cause(
    train: Callable[..., Any], deferrable: bool
) -> None:
    with pytest.raises(JobFailedError) as error:
        train("--do", "fail", deferrable=deferrable)

    assert error.value.state == "FAILED"
    assert "exited with a non-zero status of 1" in str(error.value)
    assert "RuntimeError: no convergence after 3 epochs" in str(error.value)
    assert "/logs/local/" in str(error.value)


def test_killed_trainer_is_told_as_out_of_memory(train: Callable[..., Any]) -> None:
    with pytest.raises(JobFailedError, match=r"9\(SIGKILL\)"):
        train("--do", "die")


def test_trainer_that_knows_no_job_dir_gets_a_hint(train: Callable[..., Any]) -> None:
    with pytest.raises(JobFailedError, match="doesn't know --job-dir"):
        train("--do", "refuse")


def test_retry_after_a_failure_is_a_new_attempt(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    with pytest.raises(JobFailedError):
        train("--do", "fail")
    result = train()

    assert [state for _, state in jobs_of(ml, run)] == ["FAILED", "SUCCEEDED"]
    assert result["job_id"].endswith("_20261114_000000_a002")


def test_execute_that_is_called_again_for_the_same_try_reports_its_jobs_failure(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    """Airflow does so when a trigger overtakes its scheduler.  It is no retry."""
    run.ti_id = "the same"
    for _ in range(2):
        with pytest.raises(JobFailedError, match="no convergence"):
            train("--do", "fail")
    assert [state for _, state in jobs_of(ml, run)] == ["FAILED"]

    run.ti_id = "of a retry"
    train()
    assert [state for _, state in jobs_of(ml, run)] == ["FAILED", "SUCCEEDED"]


def test_retry_after_success_takes_the_result(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    """The worker died after the job was done and before Airflow knew."""
    assert train() == train()

    assert len(jobs_of(ml, run)) == 1


def test_clear_after_success_trains_again(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    first = train()
    run.clear()
    second = train()

    assert second["job_id"] == first["job_id"] + "_a002"
    assert [state for _, state in jobs_of(ml, run)] == ["SUCCEEDED", "SUCCEEDED"]


def test_retry_attaches_to_the_running_job(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    submitted = train("--do", "hang", wait_for_completion=False)
    again = train("--do", "hang", wait_for_completion=False)
    ml.cancel_job(submitted["job_id"])

    assert again["job_id"] == submitted["job_id"]
    assert len(jobs_of(ml, run)) == 1


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferrable", "in the worker"])
def test_clear_of_a_running_task_cancels_the_old_attempt_first(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, deferrable: bool
) -> None:
    old = train("--do", "hang", wait_for_completion=False)["job_id"]
    run.clear()
    new = train(deferrable=deferrable)["job_id"]

    assert [state for _, state in jobs_of(ml, run)] == ["CANCELLED", "SUCCEEDED"]
    assert ml.get_job(old)["endTime"] <= ml.get_job(new)["createTime"]


def test_job_cancelled_outside_airflow_is_not_retried(
    train: Callable[..., Any], ml: MLv1Service
) -> None:
    job = train("--do", "hang", wait_for_completion=False)
    threading.Timer(0.5, ml.cancel_job, [job["job_id"]]).start()

    with pytest.raises(AirflowFailException, match="cancelled outside Airflow; clear the task"):
        train("--do", "hang")


def test_event_of_another_kind_of_trigger_is_not_believed(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    planned = train(dry_run=True)["job_id"]
    run.events[planned] = datetime(2026, 11, 14, tzinfo=UTC)

    assert train()["state"] == "SUCCEEDED"
    assert [state for _, state in jobs_of(ml, run)] == ["SUCCEEDED"]


def test_event_of_another_tasks_trigger_is_not_believed(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    """SQLite gives a new trigger the id of a deleted one that still runs."""
    cancelled = train("--do", "hang", wait_for_completion=False, job_id=f"other_{time.time_ns()}")
    ml.cancel_job(cancelled["job_id"])
    run.store, planned = {}, train(dry_run=True)["job_id"]
    strange = {"event": "ended", "state": "CANCELLED", "job_id": cancelled["job_id"]}
    run.events[planned] = {"project_id": "local", "api_endpoint": ml.api_endpoint, **strange}

    result = train()

    assert result["job_id"] == planned and result["state"] == "SUCCEEDED"
    assert [state for _, state in jobs_of(ml, run)] == ["SUCCEEDED"]


def test_job_past_its_deadline_is_cancelled(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    with pytest.raises(JobTimeoutError, match="raise the operator's timeout"):
        train("--do", "hang", timeout=2)

    assert [state for _, state in jobs_of(ml, run)] == ["CANCELLED"]


def test_airflows_own_limit_on_the_trigger_cancels_the_job(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    train("--do", "hang", wait_for_completion=False)
    operator = run.operator(AIPTrainingJobOperator, gcp_conn_id=CONN, timeout=900)
    failed = {"error": TriggerFailureReason.TRIGGER_TIMEOUT}
    with pytest.raises(JobTimeoutError):
        operator.resume_execution("__fail__", failed, run.context(operator))

    assert [state for _, state in jobs_of(ml, run)] == ["CANCELLED"]


def test_crashed_trigger_leaves_the_job_to_the_next_try(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    train("--do", "hang", wait_for_completion=False)
    operator = run.operator(AIPTrainingJobOperator, gcp_conn_id=CONN)
    failed = {"error": TriggerFailureReason.TRIGGER_FAILURE}
    with pytest.raises(TaskDeferralError):
        operator.resume_execution("__fail__", failed, run.context(operator))

    [(_, state)] = jobs_of(ml, run)
    assert state in ("QUEUED", "PREPARING", "RUNNING")


def test_timeout_bounds_the_bill_on_the_service_too(
    train: Callable[..., Any], ml: MLv1Service
) -> None:
    job = ml.get_job(train(timeout=90.5)["job_id"])

    assert job["trainingInput"]["scheduling"] == {"maxRunningTime": "91s"}


def test_another_owners_job_is_refused(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    base = f"shared_{time.time_ns()}"
    train(job_id=base)
    run.dag_id, run.store = "another-dag", {}
    with pytest.raises(AirflowFailException, match="belongs to dag 'retrain-") as error:
        train(job_id=base)

    assert "job_id of its own" in str(error.value)


def test_lost_ledger_takes_the_same_tries_job_and_not_a_cleared_ones(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    train()
    run.store.clear()
    train()
    assert len(jobs_of(ml, run)) == 1

    run.store.clear()
    run.clear()
    train()
    assert len(jobs_of(ml, run)) == 2


def test_ledger_is_written_before_the_job_is_made(
    train: Callable[..., Any], run: TaskRun, monkeypatch: pytest.MonkeyPatch, ml: MLv1Service
) -> None:
    """The worker dies between the two: the next try makes the very same job."""

    def die(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MLv1Service, "create_job", die)
        with pytest.raises(KeyboardInterrupt):
            train()
    planned = run.store["aiptraining_ledger"]["job_id"]

    assert train()["job_id"] == planned
    assert len(jobs_of(ml, run)) == 1


def test_unchanged_trainer_is_built_and_uploaded_once(
    train: Callable[..., Any], run: TaskRun, bucket: Bucket
) -> None:
    train()
    uploaded = {blob.name: blob.generation for blob in bucket.list_blobs(prefix="packages/")}
    run.logical_date = datetime(2026, 11, 15, tzinfo=UTC)
    run.store.clear()
    train()

    assert len(uploaded) == 1
    assert {b.name: b.generation for b in bucket.list_blobs(prefix="packages/")} == uploaded


def test_run_without_a_logical_date_works(train: Callable[..., Any], run: TaskRun) -> None:
    run.logical_date, run.run_type, run.run_id = None, "manual", "manual__x"

    assert train()["state"] == "SUCCEEDED"


def test_mapped_instances_have_jobs_of_their_own(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    for run.map_index in (0, 1):
        run.store = {}
        train()

    assert [name[-6:] for name, _ in jobs_of(ml, run)] == ["m00000", "m00001"]


def test_dry_run_uploads_and_submits_nothing(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, bucket: Bucket
) -> None:
    result = train(dry_run=True)

    assert result["dry_run"] is True and result["state"] is None
    assert run.xcoms["training_job"]["body"]["trainingInput"]["pythonModule"] == "trainer.task"
    assert list(bucket.list_blobs()) == []
    assert jobs_of(ml, run) == []


def test_params_override_what_the_author_allows(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    run.params = {"training_input": Param({}, type="object")}
    run.conf = {"training_input": {"args": ["--epochs", "9"]}}

    assert ml.get_job(train("--epochs", "1")["job_id"])["trainingInput"]["args"] == [
        "--epochs",
        "9",
    ]


def test_undeclared_param_is_not_read(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    run.conf = {"training_input": {"args": ["--evil"]}}

    assert ml.get_job(train("--good")["job_id"])["trainingInput"]["args"] == ["--good"]


def _config(text: str) -> Callable[[Path], dict[str, Any]]:
    def write(folder: Path) -> dict[str, Any]:
        (folder / "config.yaml").write_text(text)
        return {"config": "config.yaml"}

    return write


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            _config("trainingInput:\n  scaleTeir: BASIC\n"),
            r"config.yaml:2: trainingInput.scaleTeir: .*scaleTier",
            id="unknown field",
        ),
        pytest.param(
            _config("trainingInput:\n  scaleTier: HUGE\n"),
            r"config.yaml:2: trainingInput.scaleTier: ",
            id="wrong enum",
        ),
        pytest.param(_config("- a\n"), "config.yaml:1: ", id="a list at the top"),
        pytest.param({"config": "missing.yaml"}, "argument config: .*missing", id="no such file"),
        pytest.param({"job_id": "a" * 100}, "at most 88", id="id too long"),
        pytest.param({"job_id": "a-b"}, "'a_b'", id="illegal id"),
        pytest.param({"module_name": None}, "trainingInput.pythonModule", id="module missing"),
        pytest.param({"module_name": "trainer.nothere"}, "trainer.nothere", id="no such module"),
        pytest.param({"package_path": None}, "trainingInput.packageUris", id="package missing"),
        pytest.param({"package_path": "absent"}, "absent", id="no such folder"),
        pytest.param({"package_path": "bare"}, "__init__.py", id="no __init__.py"),
        pytest.param({"job_dir": None}, "staging_bucket", id="staging not given"),
        pytest.param({"job_dir": "gs://no-such-bucket-here/x"}, "no-such-bucket-here", id="bucket"),
        pytest.param({"job_dir": "/tmp/x"}, "trainingInput.jobDir", id="job_dir is no gs:// path"),
        pytest.param({"args": ["--job-dir", "x"]}, "trainingInput.args", id="--job-dir in args"),
        pytest.param({"labels": {"airflow-owner": "me"}}, "airflow-owner", id="reserved label"),
        pytest.param({"labels": {"Team": "A"}}, "labels.Team", id="illegal label"),
        pytest.param({"worker_count": 2}, "argument worker_count", id="count without type"),
        pytest.param({"runtime_version": 2.1}, "quotes", id="number for a version"),
    ],
)
def test_bad_input_is_one_clear_error_and_nothing_happens(
    train: Callable[..., Any],
    run: TaskRun,
    ml: MLv1Service,
    bucket: Bucket,
    tmp_path: Path,
    arguments: Any,
    words: str,
) -> None:
    run.folder = make_tree(tmp_path, {**TRAINER, "bare/task.py": ""})
    given = arguments(run.folder) if callable(arguments) else arguments
    with pytest.raises(AirflowFailException, match=words) as error:
        train(**given)

    assert "Traceback" not in str(error.value)
    assert list(bucket.list_blobs()) == []
    assert jobs_of(ml, run) == []
    assert run.store == {}


def test_param_that_is_not_overridable_is_refused_by_name(
    train: Callable[..., Any], run: TaskRun, bucket: Bucket
) -> None:
    run.params = {"training_input": Param({}, type="object")}
    run.conf = {"training_input": {"serviceAccount": "root@p.iam.gserviceaccount.com"}}
    with pytest.raises(AirflowFailException, match=r"serviceAccount.*overridable"):
        train()

    assert list(bucket.list_blobs()) == []


def test_read_only_bucket_is_refused(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, hook: AIPTrainingHook
) -> None:
    read_only = hook.get_storage_client().create_bucket(f"read-only-{time.time_ns()}")
    read_only.labels = {"aiptraining-read-only": "true"}
    read_only.patch()
    with pytest.raises(AirflowFailException, match=read_only.name):
        train(job_dir=f"gs://{read_only.name}/x")

    assert jobs_of(ml, run) == []


def test_secret_in_a_value_is_masked_where_the_job_is_told(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    from airflow.sdk.log import mask_secret

    mask_secret("hunter2-hunter2")
    result = train("--password=hunter2-hunter2")

    assert "hunter2" not in json.dumps(run.xcoms["training_job"])
    assert ml.get_job(result["job_id"])["trainingInput"]["args"] == ["--password=hunter2-hunter2"]


def test_ready_archive_made_by_a_step_of_its_own(
    train: Callable[..., Any], run: TaskRun, bucket: Bucket
) -> None:
    uri = run.execute(
        AIPPackageTrainerOperator,
        task_id="package",
        package_path="trainer",
        module_name="trainer.task",
        staging_bucket=bucket.name,
        gcp_conn_id=CONN,
    )
    result = train(package_path=None, packages=[uri])

    assert uri.startswith(f"gs://{bucket.name}/packages/")
    assert result["state"] == "SUCCEEDED"


def test_cancel_operator_ends_a_job_and_leaves_a_finished_one_alone(
    train: Callable[..., Any], run: TaskRun
) -> None:
    job = train("--do", "hang", wait_for_completion=False)
    cancel = {"task_id": "cancel", "job_id": job["job_id"], "gcp_conn_id": CONN}

    for _ in range(2):
        assert run.execute(AIPCancelTrainingJobOperator, **cancel) == {
            "job_id": job["job_id"],
            "state": "CANCELLED",
        }


def test_connection_test_says_what_it_reached(hook: AIPTrainingHook, service: Service) -> None:
    reached, message = hook.test_connection()

    assert reached is True
    assert message.startswith(f"Reached the embedded training service at {service.url}: project")


def test_connection_test_says_why_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"service": "local", "api_endpoint": "http://127.0.0.1:9"}
    monkeypatch.setenv(
        f"AIRFLOW_CONN_{CONN.upper()}", json.dumps({"conn_type": "aiptraining", "extra": extra})
    )

    reached, message = AIPTrainingHook(CONN).test_connection()

    assert reached is False
    assert "http://127.0.0.1:9" in message


def test_job_names_its_owner(train: Callable[..., Any], ml: MLv1Service, run: TaskRun) -> None:
    labels = ml.get_job(train()["job_id"])["labels"]

    assert len(labels[OWNER]) == 32
    assert labels["airflow-task"] == "train"
    assert labels["airflow-dag"] == run.dag_id.replace(".", "-")


def test_without_airflow_nobody_says_that_the_task_was_given_up() -> None:
    assert task_was_given_up("d", "r", "t", -1) is False


@pytest.fixture(autouse=True)
def no_job_is_left(ml: MLv1Service) -> Iterator[None]:
    yield
    for job in ml.list_jobs():
        if job["state"] in ("QUEUED", "PREPARING", "RUNNING"):
            ml.cancel_job(job["jobId"])


# Processes that Airflow has lost or given up --------------------------------------------------


class ReadBefore(UserDict[str, Any]):
    """A store as a process sees it that read nothing there, was frozen, and then goes on."""

    def __init__(self, store: dict[str, Any]) -> None:
        self.data = store
        self.was_read = False

    def get(self, key: str, default: Any = None) -> Any:
        if self.was_read:
            return self.data.get(key, default)
        self.was_read = True
        return default


def test_leftover_of_an_earlier_try_touches_nothing(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, bucket: Bucket
) -> None:
    """Its supervisor was killed, or it was frozen; meanwhile somebody cleared the task."""
    leftover = dataclasses.replace(run, store=ReadBefore(run.store))
    run.try_number = 1
    run.clear()
    job_id = train("--do", "hang", wait_for_completion=False)["job_id"]

    with pytest.raises(StaleTryError, match=rf"Try 2 .* works on job '{job_id}' \(attempt 1\)"):
        leftover.execute(AIPTrainingJobOperator, **arguments_for(bucket, "--do", "hang"))

    [(_, state)] = jobs_of(ml, run)
    assert state in ("QUEUED", "PREPARING", "RUNNING")
    ml.cancel_job(job_id)


def test_task_given_up_while_its_job_is_prepared_submits_nothing(
    train: Callable[..., Any],
    run: TaskRun,
    ml: MLv1Service,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(awaited_job, "task_was_given_up", lambda *_: True)
    monkeypatch.setattr(Trainer, "staged", killed_after(run, Trainer.staged))
    with pytest.raises(AirflowFailException, match=r"No job was submitted .* it was given up"):
        train()

    assert jobs_of(ml, run) == []


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferrable", "in the worker"])
def test_task_given_up_while_its_job_is_submitted_cancels_it(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, deferrable: bool, monkeypatch: Any
) -> None:
    """The trigger would never be picked up."""
    monkeypatch.setattr(awaited_job, "task_was_given_up", lambda *_: True)
    create = killed_after(run, MLv1Service.create_job)
    monkeypatch.setattr(MLv1Service, "create_job", create)
    with pytest.raises(AirflowFailException, match="was cancelled: its task was given up"):
        train("--do", "hang", deferrable=deferrable)

    wait_for_states(ml, run, "CANCELLED")


def test_task_timeout_in_the_midst_of_submitting_cancels_the_job(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = MLv1Service.create_job

    def interrupted(*args: Any) -> Any:
        create(*args)
        raise AirflowTaskTimeout

    monkeypatch.setattr(MLv1Service, "create_job", interrupted)
    with pytest.raises(AirflowTaskTimeout):
        train("--do", "hang")

    wait_for_states(ml, run, "CANCELLED")


def test_task_timeout_before_anything_was_sent_is_told_as_it_is(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise AirflowTaskTimeout

    monkeypatch.setattr(Trainer, "staged", interrupted)
    with pytest.raises(AirflowTaskTimeout):
        train("--do", "hang")

    assert jobs_of(ml, run) == []


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferrable", "in the worker"])
def test_old_attempt_that_never_ends_is_not_joined_by_another(
    train: Callable[..., Any],
    run: TaskRun,
    ml: MLv1Service,
    deferrable: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = train("--do", "hang", wait_for_completion=False)["job_id"]
    run.clear()
    get = MLv1Service.get_job
    run.events[old] = {"event": "timeout", "job_id": old}
    monkeypatch.setattr(training_job, "OLD_ATTEMPT_LIMIT", 1.0)
    monkeypatch.setattr(MLv1Service, "get_job", lambda *args: {**get(*args), "state": "CANCELLING"})
    with pytest.raises(JobTimeoutError, match=rf"{old}' \(attempt 1\) has been CANCELLING"):
        train("--do", "hang", deferrable=deferrable)

    assert len(jobs_of(ml, run)) == 1


def test_process_without_its_supervisor_leaves_the_deadline_to_the_next_try(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limits may be older than those of the try that has the job by now."""
    get = MLv1Service.get_job

    def orphaned(*args: Any) -> Any:
        monkeypatch.setattr(os, "getppid", lambda: 1)
        return get(*args)

    monkeypatch.setattr(MLv1Service, "get_job", orphaned)
    own_limit = {"scheduling": {"maxRunningTime": "600s"}}
    with pytest.raises(TransientServiceError, match="left to the task's next try"):
        train("--do", "hang", timeout=1, deferrable=False, training_input=own_limit)

    [(_, state)] = jobs_of(ml, run)
    assert state in ("QUEUED", "PREPARING", "RUNNING")
    ml.cancel_job(run.xcoms["job_id"])


def killed_after(run: TaskRun, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``call``, after which Airflow tells the task's process to end."""

    def calls(*args: Any, **kwargs: Any) -> Any:
        answer = call(*args, **kwargs)
        run.process.on_kill()
        return answer

    return calls
