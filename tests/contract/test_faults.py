"""Networks and services that fail: no job is doubled, lost, failed or passed for it."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faults
import pytest
from embedded import Service, start_service
from faults import LOST_ANSWERS, Fault, FaultProxy
from google.cloud.storage import Bucket
from tasks import TaskRun
from trainer_trees import make_tree

from airflow_aiptraining.core.reaping import Absent
from airflow_aiptraining.exceptions import (
    JobFailedError,
    ServiceError,
    TransientServiceError,
)
from airflow_aiptraining.hooks.training import AIPTrainingHook
from airflow_aiptraining.operators.cancel import AIPCancelTrainingJobOperator
from airflow_aiptraining.operators.reaper import Reaper
from airflow_aiptraining.operators.submission import Submission
from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator
from airflow_aiptraining.services import retries
from airflow_aiptraining.services.ml_v1 import MLv1Service

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
    """Seconds become hundredths, but for the answers of a service that is there."""
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(retries, "LONGEST_PAUSE", 0.1)
    monkeypatch.setitem(MLv1Service.__init__.__kwdefaults__, "timeout", 1.0)


@pytest.fixture
def proxy(service: Service) -> Iterator[FaultProxy]:
    with FaultProxy(service.url) as proxy:
        yield proxy


def connect(monkeypatch: pytest.MonkeyPatch, ml: str, others: str) -> None:
    """Let the connection lead to these endpoints."""
    extra = {
        "service": "local",
        "api_endpoint": ml,
        "storage_endpoint": others,
        "logging_endpoint": others,
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
OPEN_ANSWERS = [
    *LOST_ANSWERS,
    faults.SILENT,
    *(fault.done_first() for fault in (*LOST_ANSWERS, faults.SILENT)),
    faults.CUT,
    faults.DRIP,
]


@pytest.mark.parametrize("fault", OPEN_ANSWERS, ids=str)
def test_lost_answer_to_create_makes_one_job(
    fault: Fault, train: Callable[..., Any], run: TaskRun, proxy: FaultProxy, ml: MLv1Service
) -> None:
    proxy.script(*CREATE, [fault])

    first = train(wait_for_completion=False)["job_id"]
    retried = train(wait_for_completion=False)["job_id"]

    assert jobs_of(ml, run) == [first] == [retried]


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

WAITING_FAULTS = [*LOST_ANSWERS, faults.CUT, faults.WRONG_TYPE, faults.SLOW]


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


@BOTH
def test_outage_is_borne_and_the_log_says_since_when(
    deferrable: bool,
    train: Callable[..., Any],
    run: TaskRun,
    proxy: FaultProxy,
    ml: MLv1Service,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pauses are a hundredth of the real ones, so this is an outage of some minutes."""
    caplog.set_level(logging.INFO)

    def outage() -> None:
        while not jobs_of(ml, run):
            time.sleep(0.02)
        proxy.cut_off()
        time.sleep(3)
        proxy.restore()

    thread = threading.Thread(target=outage)
    thread.start()
    result = train(1.0, deferrable=deferrable)
    thread.join()

    assert result["state"] == "SUCCEEDED"
    assert jobs_of(ml, run) == [result["job_id"]]
    # Airflow's own loggers write to standard output.
    told = caplog.text + capsys.readouterr().out
    assert re.search(r"since \d\d:\d\d:\d\d UTC", told)


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


# -- cancel and list ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [*LOST_ANSWERS[:6], *(fault.done_first() for fault in LOST_ANSWERS[:6]), faults.CUT],
    ids=str,
)
def test_lost_answer_to_cancel_cancels(
    fault: Fault, train: Callable[..., Any], run: TaskRun, proxy: FaultProxy
) -> None:
    job_id = train(600, wait_for_completion=False)["job_id"]
    proxy.script(*CANCEL, [fault])
    proxy.script(*GET, [fault])
    cancelled = run.execute(
        AIPCancelTrainingJobOperator, task_id="cancel", job_id=job_id, gcp_conn_id=CONN
    )

    assert cancelled == {"job_id": job_id, "state": "CANCELLED"}


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
