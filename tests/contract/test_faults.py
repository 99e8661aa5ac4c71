"""Networks and services that fail: no job is doubled, lost, failed or passed for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faults
import pytest
from airflow.sdk.exceptions import AirflowFailException
from embedded import Service, start_service
from faults import LOST_ANSWERS, Fault, FaultProxy
from google.cloud.storage import Bucket
from tasks import TaskRun
from trainer_trees import make_tree

from airflow_aiptraining.core.attempts import KEEP
from airflow_aiptraining.core.reaping import Absent
from airflow_aiptraining.exceptions import (
    JobFailedError,
    JobTimeoutError,
    ServiceError,
    TransientServiceError,
)
from airflow_aiptraining.hooks import storage
from airflow_aiptraining.hooks.training import AIPTrainingHook
from airflow_aiptraining.operators.cancel import AIPCancelTrainingJobOperator
from airflow_aiptraining.operators.job_result import failure
from airflow_aiptraining.operators.reaper import Reaper
from airflow_aiptraining.operators.submission import Submission
from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator
from airflow_aiptraining.sensors.model_export import AIPModelExportSensor
from airflow_aiptraining.sensors.training_job import AIPTrainingJobSensor
from airflow_aiptraining.services import logs, ml_v1, retries
from airflow_aiptraining.services.ml_v1 import MLv1Service
from airflow_aiptraining.triggers import deferral
from airflow_aiptraining.triggers.training_job import AIPTrainingJobTrigger

CONN = "aiptraining_faults"
TRAINER = {
    "trainer/__init__.py": "",
    "trainer/task.py": """
        import sys, time
        time.sleep(float(sys.argv[1]))
        sys.exit(int(sys.argv[2]))
    """,
}
BOTH = pytest.mark.parametrize("deferrable", [True, False], ids=["deferrable", "in the worker"])
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def compressed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses become short, but the answers of a service that is there take what they take."""
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.005)
    monkeypatch.setattr(retries, "LONGEST_PAUSE", 0.03)
    monkeypatch.setattr("airflow_aiptraining.triggers.training_job._request_budget", lambda: 24_000)
    monkeypatch.setitem(MLv1Service.__init__.__kwdefaults__, "timeout", 1.0)


@pytest.fixture
def proxy(service: Service) -> Iterator[FaultProxy]:
    with FaultProxy(service.url) as proxy:
        yield proxy


def connect(monkeypatch: pytest.MonkeyPatch, ml: str, others: str, logging: str = "") -> None:
    """Let the connection lead to these endpoints."""
    extra = {
        "service": "local",
        "api_endpoint": ml,
        "storage_endpoint": others,
        "logging_endpoint": logging or others,
        "region": "europe-west1",
    }
    connection = json.dumps({"conn_type": "aiptraining", "extra": extra})
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", connection)


@pytest.fixture
def hook(service: Service, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> AIPTrainingHook:
    connect(monkeypatch, proxy.url, service.url)
    return AIPTrainingHook(CONN)


@pytest.fixture
def ml(service: Service, hook: AIPTrainingHook) -> MLv1Service:
    """The service itself, not through the proxy."""
    return hook.get_service(api_endpoint=service.url)


@pytest.fixture(scope="module")
def dag_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("dags"), TRAINER)


@pytest.fixture(scope="module")
def bucket(service: Service) -> Bucket:
    with pytest.MonkeyPatch.context() as patch:
        connect(patch, service.url, service.url)
        return AIPTrainingHook(CONN).get_storage_client().create_bucket(f"faults-{time.time_ns()}")


@pytest.fixture
def run(dag_folder: Path) -> TaskRun:
    return TaskRun(dag_folder, dag_id=f"faulty{next(_numbers)}x{time.time_ns()}")


@pytest.fixture
def train(run: TaskRun, bucket: Bucket, hook: AIPTrainingHook) -> Callable[..., Any]:
    def execute(seconds: float = 0.0, code: int = 0, **arguments: Any) -> Any:
        given = {
            "package_path": "trainer",
            "module_name": "trainer.task",
            "staging_bucket": bucket.name,
            "args": [str(seconds), str(code)],
            "gcp_conn_id": CONN,
            "poll_interval": 0.05,
            "deferrable": False,
            **arguments,
        }
        return run.execute(AIPTrainingJobOperator, **given)

    return execute


@pytest.fixture(autouse=True)
def no_job_is_left(service: Service) -> Iterator[None]:
    yield
    with pytest.MonkeyPatch.context() as patch:
        connect(patch, service.url, service.url)
        direct = AIPTrainingHook(CONN).get_service()
    for job in direct.list_jobs():
        if job["state"] in ("QUEUED", "PREPARING", "RUNNING"):
            with contextlib.suppress(ServiceError):  # it has ended meanwhile
                direct.cancel_job(job["jobId"])


def jobs_of(ml: MLv1Service, run: TaskRun) -> list[str]:
    """Return the ids of all jobs of this DAG."""
    return sorted(str(job["jobId"]) for job in ml.list_jobs(f"jobId:{run.dag_id}*"))


# -- create ------------------------------------------------------------------------------------

CREATE = ("POST", "/jobs?")
GET = ("GET", "/jobs/")
CANCEL = ("POST", ":cancel")
LIST = ("GET", "/jobs?")
#: Answers to a read, one after the other; each is asked for again, or is an answer after all.
WAITING_FAULTS = [*LOST_ANSWERS, faults.CUT, faults.WRONG_TYPE, faults.SLOW]


@pytest.mark.parametrize("fault", [*LOST_ANSWERS, faults.SILENT], ids=str)
def test_lost_answer_to_create_makes_one_job(
    fault: Fault, train: Callable[..., Any], run: TaskRun, proxy: FaultProxy, ml: MLv1Service
) -> None:
    """The first request doesn't reach the service, the second does."""
    proxy.script(*CREATE, [fault, fault.done_first()])

    first = train(wait_for_completion=False)["job_id"]
    retried = train(wait_for_completion=False)["job_id"]

    assert jobs_of(ml, run) == [first] == [retried]
    assert proxy.count(*CREATE) == 2


@pytest.mark.parametrize("fault", [faults.CUT, faults.DRIP], ids=str)
def test_half_an_answer_to_create_makes_one_job(
    fault: Fault, train: Callable[..., Any], run: TaskRun, proxy: FaultProxy, ml: MLv1Service
) -> None:
    proxy.script(*CREATE, [fault])

    assert [train(wait_for_completion=False)["job_id"]] == jobs_of(ml, run)
    assert proxy.count(*CREATE) == 1


def test_look_up_before_create_bears_every_fault(
    train: Callable[..., Any], run: TaskRun, proxy: FaultProxy, ml: MLv1Service
) -> None:
    job_id = train(600, wait_for_completion=False)["job_id"]
    for place in (GET, LIST):
        proxy.script(*place, WAITING_FAULTS)

    assert train(600, wait_for_completion=False)["job_id"] == job_id
    assert jobs_of(ml, run) == [job_id]
    assert proxy.count(*GET) > len(LOST_ANSWERS)


@pytest.mark.parametrize("fault", [faults.SLOW, faults.WRONG_TYPE], ids=str)
def test_slow_or_oddly_labelled_answer_is_an_answer(
    fault: Fault, train: Callable[..., Any], run: TaskRun, proxy: FaultProxy, ml: MLv1Service
) -> None:
    proxy.script(*CREATE, [fault])

    assert jobs_of(ml, run) == [] and [train()["job_id"]] == jobs_of(ml, run)
    assert proxy.count(*CREATE) == 1


@pytest.mark.parametrize("fault", [faults.INTERNAL, faults.RESET, faults.CUT], ids=str)
def test_lost_create_whose_look_up_fails_as_well_makes_one_job(
    fault: Fault, train: Callable[..., Any], run: TaskRun, proxy: FaultProxy, ml: MLv1Service
) -> None:
    proxy.script(*CREATE, [faults.UNAVAILABLE, fault.done_first()])
    proxy.script(*GET, [faults.RESET, faults.HTML_502, fault, faults.TOO_MANY_WAIT])

    assert [train()["job_id"]] == jobs_of(ml, run)


def test_create_that_is_told_to_exist_and_can_not_be_read_at_once_is_found(
    train: Callable[..., Any], run: TaskRun, proxy: FaultProxy, ml: MLv1Service
) -> None:
    """httplib2 may send a request again by itself, and the second answer is 409."""
    exists = faults.error(409, "ALREADY_EXISTS").done_first()
    proxy.script(*CREATE, [exists])
    proxy.script(*GET, [faults.UNAVAILABLE, faults.RESET])

    assert [train()["job_id"]] == jobs_of(ml, run)


@pytest.mark.parametrize(
    "fault", [faults.INTERNAL, faults.INTERNAL.done_first()], ids=["not done", "done"]
)
def test_try_that_gave_up_on_a_create_is_followed_by_one_that_finds_its_job(
    fault: Fault,
    train: Callable[..., Any],
    run: TaskRun,
    proxy: FaultProxy,
    ml: MLv1Service,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Submission.__init__, "__defaults__", (0.2,))
        proxy.script(*CREATE, [fault], last_stays=True)
        proxy.script(*GET, [faults.UNAVAILABLE], last_stays=True)
        with pytest.raises(TransientServiceError):
            train()
    proxy.restore()

    assert train()["job_id"] == run.store["aiptraining_ledger"]["job_id"]
    assert len(jobs_of(ml, run)) == 1


# -- waiting -----------------------------------------------------------------------------------


@BOTH
def test_healthy_job_survives_every_fault_of_its_reads(
    deferrable: bool, train: Callable[..., Any], run: TaskRun, proxy: FaultProxy, ml: MLv1Service
) -> None:
    for place in (GET, LIST):
        proxy.script(*place, [*WAITING_FAULTS, *WAITING_FAULTS])

    result = train(1.0, deferrable=deferrable)

    assert result["state"] == "SUCCEEDED"
    assert jobs_of(ml, run) == [result["job_id"]]


@BOTH
def test_failed_job_never_passes_for_a_fault(
    deferrable: bool, train: Callable[..., Any], proxy: FaultProxy
) -> None:
    for place in (GET, LIST):
        proxy.script(*place, [*WAITING_FAULTS, *WAITING_FAULTS])

    with pytest.raises(JobFailedError) as error:
        train(0.5, 3, deferrable=deferrable)

    assert error.value.state == "FAILED"
    assert "non-zero status of 3" in str(error.value)


@BOTH
def test_answers_that_never_come_or_drip_do_not_hold_the_wait(
    deferrable: bool, train: Callable[..., Any], proxy: FaultProxy
) -> None:
    for place in (GET, LIST):
        proxy.script(*place, [faults.SILENT, faults.DRIP])
    started = time.monotonic()

    assert train(1.0, deferrable=deferrable)["state"] == "SUCCEEDED"
    assert time.monotonic() - started < 20


def test_worker_that_gives_up_waiting_leaves_its_job_to_the_next_try(
    train: Callable[..., Any],
    run: TaskRun,
    proxy: FaultProxy,
    ml: MLv1Service,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("airflow_aiptraining.operators.waiting.PATIENCE", 0.3)
        proxy.script(*GET, [faults.UNAVAILABLE], last_stays=True)
        with pytest.raises(TransientServiceError):
            train(1.0)
    proxy.restore()

    assert [train(1.0)["job_id"]] == jobs_of(ml, run)


@BOTH
def test_hour_without_an_answer_fails_no_healthy_job(
    deferrable: bool,
    train: Callable[..., Any],
    run: TaskRun,
    proxy: FaultProxy,
    ml: MLv1Service,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pauses, patience and reminders are a thousandth of the real ones, and so is the hour."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(retries, "LONGEST_PAUSE", 0.03)
    monkeypatch.setattr("airflow_aiptraining.operators.waiting.PATIENCE", 0.3)
    monkeypatch.setattr("airflow_aiptraining.triggers.waiter.REMINDER", 0.3)
    job_id = train(4.2, wait_for_completion=False)["job_id"]
    proxy.script(*GET, [Fault("", forward=True)])  # the look before the wait
    for place in (GET, LIST):
        proxy.script(*place, [faults.HTML_502, faults.RESET], last_stays=True)
    threading.Timer(3.6, proxy.restore).start()

    tries, result = 0, None
    while result is None:
        tries += 1
        with contextlib.suppress(TransientServiceError):
            result = train(4.2, deferrable=deferrable)

    assert result["state"] == "SUCCEEDED"
    assert tries == 1 if deferrable else tries > 1
    assert jobs_of(ml, run) == [job_id]
    told = caplog.text + capsys.readouterr().out
    assert len(re.findall(r"since \d\d:\d\d:\d\d UTC", told)) > 3


def test_reading_the_end_of_a_deferred_job_bears_every_fault(
    train: Callable[..., Any], run: TaskRun, proxy: FaultProxy
) -> None:
    class AndThenFaults(dict[str, Any]):
        def get(self, job_id: str, event: Any = None) -> Any:
            proxy.script(*GET, WAITING_FAULTS)
            return event

    run.events = AndThenFaults()

    assert train(0.3, deferrable=True)["state"] == "SUCCEEDED"
    assert proxy.count(*GET) > len(WAITING_FAULTS)


LOG = ("POST", "entries:list")


@pytest.fixture(scope="module")
def failed_job(service: Service, dag_folder: Path, bucket: Bucket) -> dict[str, Any]:
    """A job that FAILED with code 3."""
    with pytest.MonkeyPatch.context() as patch:
        connect(patch, service.url, service.url)
        run = TaskRun(dag_folder, dag_id=f"failed{time.time_ns()}")
        with pytest.raises(JobFailedError) as error:
            run.execute(
                AIPTrainingJobOperator,
                package_path="trainer",
                module_name="trainer.task",
                staging_bucket=bucket.name,
                args=["0", "3"],
                gcp_conn_id=CONN,
                poll_interval=0.05,
                deferrable=False,
            )
        return AIPTrainingHook(CONN).get_service().get_job(error.value.job_id)


@pytest.mark.parametrize(
    "fault",
    [*LOST_ANSWERS, faults.ODD_ENTRIES, faults.PAGES, faults.SILENT, faults.DRIP, faults.CUT],
    ids=str,
)
def test_log_that_can_not_be_read_hides_no_failure_and_takes_no_minutes(
    fault: Fault,
    failed_job: dict[str, Any],
    service: Service,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(monkeypatch, service.url, service.url, proxy.url)
    monkeypatch.setattr(ml_v1, "TAIL_TIMEOUT", 0.3)
    monkeypatch.setattr(logs, "TAIL_LIMIT", 0.3)
    proxy.script(*LOG, [fault], last_stays=True)
    started = time.monotonic()

    error = failure(failed_job, AIPTrainingHook(CONN).get_service(), "local", "", cure="")

    assert error.state == "FAILED"
    assert "non-zero status of 3" in str(error)
    assert proxy.count(*LOG) >= 1
    assert time.monotonic() - started < 10


# -- cancel and list ---------------------------------------------------------------------------

#: All but those that say, as the API does, that a cancel was taken.
CANCEL_FAULTS = [one for one in LOST_ANSWERS if one not in (faults.EMPTY, faults.OTHER_JOB)]


def is_cancelled(ml: MLv1Service, job_id: str) -> bool:
    """Tell whether a job has been cancelled, or will be at once."""
    return ml.get_job(job_id)["state"] in ("CANCELLING", "CANCELLED")


@BOTH
def test_deadline_cancels_through_every_fault(
    deferrable: bool, train: Callable[..., Any], run: TaskRun, proxy: FaultProxy, ml: MLv1Service
) -> None:
    proxy.script(*CANCEL, CANCEL_FAULTS)
    for place in (GET, LIST):
        proxy.script(*place, LOST_ANSWERS)
    # Else the service itself may be first to cancel it.
    unbounded = {"scheduling": {"maxRunningTime": "600s"}}

    with pytest.raises(JobTimeoutError):
        train(600, timeout=1.0, deferrable=deferrable, training_input=unbounded)

    [job_id] = jobs_of(ml, run)
    assert is_cancelled(ml, job_id)
    assert proxy.count(*CANCEL) > 1


def test_given_up_worker_cancels_through_some_seconds_of_faults(
    train: Callable[..., Any],
    run: TaskRun,
    proxy: FaultProxy,
    ml: MLv1Service,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("airflow_aiptraining.triggers.given_up.task_state", lambda _: "failed")
    proxy.script(*CANCEL, CANCEL_FAULTS[:5])

    def give_up() -> None:
        while not jobs_of(ml, run):
            time.sleep(0.02)
        run.process.on_kill()

    thread = threading.Thread(target=give_up)
    thread.start()
    with pytest.raises(AirflowFailException, match="given up"):
        train(600, deferrable=False)
    thread.join()

    assert is_cancelled(ml, *jobs_of(ml, run))


def test_given_up_trigger_cancels_through_some_seconds_of_faults(
    train: Callable[..., Any],
    run: TaskRun,
    proxy: FaultProxy,
    ml: MLv1Service,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job_id = train(600, wait_for_completion=False)["job_id"]
    monkeypatch.setattr("airflow_aiptraining.triggers.given_up.task_state", lambda _: "failed")
    proxy.script(*CANCEL, CANCEL_FAULTS)
    trigger = AIPTrainingJobTrigger(job_id, "local", "local", proxy.url, CONN)
    trigger.task_instance = SimpleNamespace(  # type: ignore[assignment]
        dag_id=run.dag_id, run_id=run.run_id, task_id="train", map_index=-1
    )

    asyncio.run(trigger.on_kill())

    assert is_cancelled(ml, job_id)


def test_reaper_cancels_through_every_fault(
    train: Callable[..., Any], proxy: FaultProxy, hook: AIPTrainingHook, ml: MLv1Service
) -> None:
    job = ml.get_job(train(600, wait_for_completion=False)["job_id"])
    job_id, labels = f"{job['jobId']}_counted_on", dict(job["labels"])
    del labels[KEEP]
    ml.create_job({"jobId": job_id, "labels": labels, "trainingInput": job["trainingInput"]})
    proxy.script(*GET, WAITING_FAULTS)
    proxy.script(*CANCEL, [*CANCEL_FAULTS, *(one.done_first() for one in CANCEL_FAULTS)])

    cancelled, problems = Reaper(hook.get_service(), "", lambda _: "failed").reap([job_id])

    assert problems == []
    assert is_cancelled(ml, job_id)
    assert cancelled in ([job_id], [])  # a cancel whose answer was lost may find it CANCELLED


@pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done"])
def test_lost_answers_to_cancel_cancel(
    is_done: bool, train: Callable[..., Any], run: TaskRun, proxy: FaultProxy
) -> None:
    job_id = train(600, wait_for_completion=False)["job_id"]
    lost = [*CANCEL_FAULTS, faults.CUT]
    proxy.script(*CANCEL, [one.done_first() for one in lost] if is_done else lost)
    proxy.script(*GET, WAITING_FAULTS)
    cancelled = run.execute(
        AIPCancelTrainingJobOperator, task_id="cancel", job_id=job_id, gcp_conn_id=CONN
    )

    assert cancelled == {"job_id": job_id, "state": "CANCELLED"}
    assert proxy.count(*CANCEL) > 1


def test_clear_whose_cancel_gets_lost_never_runs_two_attempts(
    train: Callable[..., Any], run: TaskRun, proxy: FaultProxy, ml: MLv1Service
) -> None:
    old = train(600, wait_for_completion=False)["job_id"]
    proxy.script(*CANCEL, [faults.INTERNAL, faults.RESET.done_first(), faults.CUT])
    run.clear()
    new = train()["job_id"]

    assert jobs_of(ml, run) == [old, new]
    assert ml.get_job(old)["state"] == "CANCELLED"
    assert ml.get_job(old)["endTime"] <= ml.get_job(new)["createTime"]


def test_reaper_bears_faults_and_tells_of_jobs_that_it_could_not_cancel(
    train: Callable[..., Any], proxy: FaultProxy, hook: AIPTrainingHook, ml: MLv1Service
) -> None:
    job_id = train(600, wait_for_completion=False)["job_id"]
    proxy.script(*LIST, [*LOST_ANSWERS, faults.CUT])
    reaper = Reaper(hook.get_service(), "", lambda _: Absent.NO_ANSWER)

    assert job_id in {finding.job_id for finding in reaper.look()}
    proxy.script(*GET, [faults.error(403, "PERMISSION_DENIED")])
    cancelled, problems = reaper.reap([job_id])
    assert cancelled == []
    assert len(problems) == 1 and "PERMISSION_DENIED" in problems[0]


# -- sensors -----------------------------------------------------------------------------------

SENSORS = pytest.mark.parametrize(
    "kind", [AIPTrainingJobSensor, AIPModelExportSensor], ids=["job", "model"]
)


@pytest.fixture
def model_in(bucket: Bucket) -> Callable[[str], dict[str, Any]]:
    """Write a model where the gate looks for it; return what names the place to the gate."""

    def write(folder: str) -> dict[str, Any]:
        bucket.blob(f"{folder}/model.joblib").upload_from_string(b"model")
        return {"model_uri": f"gs://{bucket.name}/{folder}", "metrics": None, "settle_time": 0}

    return write


@pytest.fixture
def wait(run: TaskRun, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a sensor."""
    monkeypatch.setattr(deferral, "SHORTEST_DEFERRAL", 0.05)

    def execute(kind: type[Any], **arguments: Any) -> Any:
        given = {"gcp_conn_id": CONN, "poke_interval": 0.02, "timeout": 60, **arguments}
        return run.execute(kind, task_id="wait", **given)

    return execute


@BOTH
@SENSORS
def test_no_fault_fails_a_sensor_and_no_failed_job_passes(
    kind: type[Any],
    deferrable: bool,
    train: Callable[..., Any],
    wait: Callable[..., Any],
    model_in: Callable[[str], dict[str, Any]],
    run: TaskRun,
    proxy: FaultProxy,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = train(0.5, wait_for_completion=False)["job_id"]
    run.dag_id += "x"
    run.store.clear()
    bad = train(0.5, 3, wait_for_completion=False)["job_id"]
    gate = model_in(good) if kind is AIPModelExportSensor else {}
    # Looks in the worker come one interval after the other, and a deferral's last a second.
    rounds = [faults.UNAVAILABLE] if deferrable else WAITING_FAULTS
    for place in (GET, LIST):
        proxy.script(*place, rounds)

    assert wait(kind, job_id=good, deferrable=deferrable, **gate)["job_id"] == good
    for place in (GET, LIST):
        proxy.script(*place, rounds)
    with pytest.raises(AirflowFailException, match=f"{bad}.*FAILED"):
        wait(kind, job_id=bad, deferrable=deferrable, **gate)
    assert re.search(r"No answer since \d{4}-\d\d-\d\dT[\d:.]+Z", capsys.readouterr().out)


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferrable", "in the worker"])
def test_storage_that_is_away_fails_no_gate(
    deferrable: bool,
    train: Callable[..., Any],
    wait: Callable[..., Any],
    model_in: Callable[[str], dict[str, Any]],
    service: Service,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job_id = train()["job_id"]
    gate = model_in(job_id)
    connect(monkeypatch, service.url, proxy.url)
    monkeypatch.setitem(storage._calls, "retry", storage._retry.with_timeout(0.0))
    monkeypatch.setitem(storage._calls, "timeout", (1.0, 0.5))
    storage_faults = [
        *(faults.RESET, faults.TOO_MANY, faults.TOO_MANY_WAIT, faults.INTERNAL, faults.UNAVAILABLE),
        *(faults.ERROR_INSIDE, faults.HTML_502, faults.HTML_200, faults.NO_BODY, faults.LIST),
        *(faults.TRUNCATED, faults.CUT, faults.SILENT),
    ]
    # No model is ever seen in an answer that holds none: such are looked at again.
    proxy.script("GET", "/o?", storage_faults[:1] if deferrable else storage_faults)
    arguments = {**gate, "job_id": job_id, "deferrable": deferrable, "grace_period": None}

    assert wait(AIPModelExportSensor, **arguments)["job_id"] == job_id
    assert "No answer since" in capsys.readouterr().out


# -- the connection is edited ------------------------------------------------------------------


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Service]:
    """Another embedded service."""
    service = start_service(tmp_path / "other")
    yield service
    service.stop()


def test_connection_edited_while_the_job_runs_makes_no_second_job(
    train: Callable[..., Any],
    run: TaskRun,
    ml: MLv1Service,
    service: Service,
    other: Service,
    hook: AIPTrainingHook,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job_id = train(1.0, wait_for_completion=False)["job_id"]
    connect(monkeypatch, other.url, service.url)

    result = train(1.0)
    elsewhere = hook.get_service(api_endpoint=other.url)
    assert result["job_id"] == job_id
    assert jobs_of(ml, run) == [job_id]
    assert jobs_of(elsewhere, run) == []


def test_next_attempt_goes_where_the_connection_leads_by_then(
    train: Callable[..., Any],
    run: TaskRun,
    ml: MLv1Service,
    service: Service,
    other: Service,
    hook: AIPTrainingHook,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = train(600, wait_for_completion=False)["job_id"]
    connect(monkeypatch, other.url, other.url)
    AIPTrainingHook(CONN).get_storage_client().create_bucket(bucket.name)
    run.clear()
    second = train()["job_id"]

    elsewhere = hook.get_service(api_endpoint=other.url)
    assert ml.get_job(first)["state"] == "CANCELLED"
    assert jobs_of(elsewhere, run) == [second] == [f"{first}_a002"]


def test_endpoint_that_is_gone_for_good_is_named_with_the_cure(
    train: Callable[..., Any],
    service: Service,
    other: Service,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(monkeypatch, other.url, other.url)
    AIPTrainingHook(CONN).get_storage_client().create_bucket(bucket.name)
    job_id = train(600, wait_for_completion=False)["job_id"]
    other.kill()
    connect(monkeypatch, service.url, service.url)
    monkeypatch.setattr(Submission.__init__, "__defaults__", (0.1,))

    with pytest.raises(ServiceError, match="If that endpoint is gone for good") as error:
        train()

    assert job_id in str(error.value)
    assert other.url in str(error.value)
