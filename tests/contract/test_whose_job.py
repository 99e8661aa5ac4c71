"""Whose job is it?  What a task may cancel, must find again, and may not lose sight of."""

from __future__ import annotations

import dataclasses
import itertools
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faults
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout
from embedded import Service
from faults import FaultProxy
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Bucket, Client
from processes import wait_for
from tasks import TaskRun
from trainer_trees import make_tree

from airflow_aiptraining.core.reaping import Verdict
from airflow_aiptraining.exceptions import ServiceError, StaleTryError
from airflow_aiptraining.hooks.training import AIPTrainingHook
from airflow_aiptraining.operators import awaited_job
from airflow_aiptraining.operators.reaper import Reaper
from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator
from airflow_aiptraining.services.ml_v1 import MLv1Service

CONN = "aiptraining_whose"
TRAINER = {
    "trainer/__init__.py": "",
    "trainer/task.py": """
        import sys, time
        time.sleep(float(sys.argv[1]))
    """,
}
ACTIVE = ("QUEUED", "PREPARING", "RUNNING")
LEDGER = "aiptraining_ledger"
_numbers = itertools.count()


@pytest.fixture
def proxy(service: Service) -> Iterator[FaultProxy]:
    with FaultProxy(service.url) as proxy:
        yield proxy


@pytest.fixture
def connect(
    service: Service, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    def name(**more: str) -> None:
        extra = {
            "service": "local",
            "api_endpoint": proxy.url,
            "storage_endpoint": service.url,
            "region": "europe-west1",
            **more,
        }
        connection = json.dumps({"conn_type": "aiptraining", "extra": extra})
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", connection)

    name()
    return name


@pytest.fixture
def ml(connect: Callable[..., None], service: Service) -> MLv1Service:
    """The service itself, not through the proxy."""
    return AIPTrainingHook(CONN).get_service(api_endpoint=service.url)


@pytest.fixture(scope="module")
def bucket(service: Service) -> Bucket:
    """One bucket for all tests: the trainer is built once."""
    options = {"api_endpoint": service.url}
    client = Client("local", AnonymousCredentials(), client_options=options)
    return client.create_bucket(f"whose-{time.time_ns()}")


@pytest.fixture(scope="module")
def dag_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("dags"), TRAINER)


@pytest.fixture
def run(dag_folder: Path) -> TaskRun:
    return TaskRun(dag_folder, dag_id=f"whose{next(_numbers)}x{time.time_ns()}")


@pytest.fixture
def train(run: TaskRun, bucket: Bucket) -> Callable[..., Any]:
    """Run one try; a trainer of many seconds that isn't waited for, unless told otherwise."""

    def execute(seconds: float = 600, task: TaskRun = run, **arguments: Any) -> Any:
        given = {
            "package_path": "trainer",
            "module_name": "trainer.task",
            "staging_bucket": bucket.name,
            "args": [str(seconds)],
            "gcp_conn_id": CONN,
            "poll_interval": 0.1,
            "deferrable": False,
            "wait_for_completion": False,
            **arguments,
        }
        return task.execute(AIPTrainingJobOperator, **given)

    return execute


@pytest.fixture(autouse=True)
def no_job_is_left(ml: MLv1Service) -> Iterator[None]:
    yield
    for job in ml.list_jobs():
        if job["state"] in ACTIVE:
            try:
                ml.cancel_job(job["jobId"])
            except ServiceError:
                continue  # it has ended meanwhile


def jobs_of(ml: MLv1Service, run: TaskRun) -> list[tuple[str, str]]:
    """Return (id, state) of every job of this DAG."""
    jobs = sorted(ml.list_jobs(f"jobId:{run.dag_id}*"), key=lambda job: str(job["jobId"]))
    return [(job["jobId"], job["state"]) for job in jobs]


def state_of(ml: MLv1Service, job_id: str) -> str:
    return str(ml.get_job(job_id)["state"])


def test_timeout_while_another_owners_job_is_looked_at_leaves_it_alone(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = f"shared_{time.time_ns()}"
    theirs = train(job_id=base)["job_id"]
    get = MLv1Service.get_job

    def interrupted(*args: Any) -> Any:
        monkeypatch.setattr(MLv1Service, "get_job", get)
        raise AirflowTaskTimeout

    monkeypatch.setattr(MLv1Service, "get_job", interrupted)
    other = dataclasses.replace(run, dag_id="another-dag", store={}, try_number=0)
    with pytest.raises(AirflowTaskTimeout):
        train(task=other, job_id=base)

    assert state_of(ml, theirs) in ACTIVE


class Replaced(dict[str, Any]):
    """The store, for a process whose task instance Airflow has replaced: a clear gives a new id.

    Airflow answers such a read as if nothing was written, and refuses such a write (404).
    """

    is_replaced = False

    def get(self, key: str, default: Any = None) -> Any:
        return default if self.is_replaced else super().get(key, default)

    def update(self, *args: Any, **kwargs: Any) -> None:
        if self.is_replaced:
            raise RuntimeError("Task instance not found")
        super().update(*args, **kwargs)


def test_leftover_that_was_sending_its_job_leaves_the_cleared_tasks_job_alone(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was frozen after it wrote its ledger; somebody cleared the task, and try 2 is at work."""
    create, store, new = MLv1Service.create_job, Replaced(), []

    def frozen(*args: Any) -> Any:
        monkeypatch.setattr(MLv1Service, "create_job", create)
        successor = dataclasses.replace(run, store=dict(store), try_number=1)
        successor.clear()
        new.append(train(task=successor)["job_id"])
        store.is_replaced = True
        return create(*args)

    monkeypatch.setattr(MLv1Service, "create_job", frozen)
    with pytest.raises(StaleTryError):
        train(task=dataclasses.replace(run, store=store))

    assert [(job_id, state in ACTIVE) for job_id, state in jobs_of(ml, run)] == [(new[0], True)]


def test_job_that_a_later_try_no_longer_waits_for_is_not_reaped(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The DAG's author says wait_for_completion=False between two tries."""
    with monkeypatch.context() as patched:
        patched.setattr(AIPTrainingJobOperator, "_tell", killed)
        with pytest.raises(KeyboardInterrupt):
            train(2, wait_for_completion=True)
    job_id = train(2, wait_for_completion=False)["job_id"]
    cancelled, _ = Reaper(ml, "", lambda _: "success").reap([job_id])

    assert cancelled == []


def killed(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_running_job_is_awaited_though_it_can_no_longer_be_prepared(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, dag_folder: Path
) -> None:
    """A retry, with a DAG whose staging bucket or config file is gone meanwhile."""
    job_id = train(3)["job_id"]

    again = train(3, wait_for_completion=True, config="gone.yaml")

    assert again["job_id"] == job_id


def test_renamed_deployment_does_not_lose_its_running_jobs(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, connect: Callable[..., None]
) -> None:
    connect(deployment="old-name")
    job_id = train()["job_id"]
    connect(deployment="new-name")

    assert train()["job_id"] == job_id
    assert len(jobs_of(ml, run)) == 1


def test_renamed_deployment_does_not_lose_the_old_attempt_of_a_cleared_task(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, connect: Callable[..., None]
) -> None:
    connect(deployment="old-name")
    old = train()["job_id"]
    connect(deployment="new-name")
    # From RUNNING, a cancel takes a while: the decision is made anew when it is done.
    wait_for(lambda: state_of(ml, old) == "RUNNING", timeout=60, what="a running job")
    run.clear()
    new = train(0)["job_id"]

    assert [job_id for job_id, _ in jobs_of(ml, run)] == [old, new]
    assert state_of(ml, old) == "CANCELLED"


def test_new_base_cures_a_conflict(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    base = f"shared_{time.time_ns()}"
    train(job_id=base)
    other = dataclasses.replace(run, dag_id="another-dag", store={}, try_number=0)
    with pytest.raises(AirflowFailException, match="job_id of its own"):
        train(task=other, job_id=base)
    other.clear()

    assert train(task=other, job_id=f"own_{base}")["job_id"].startswith(f"own_{base}")


def test_task_given_up_while_its_job_is_submitted_cancels_it_though_it_is_not_waited_for(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaited_job, "task_was_given_up", lambda *_: True)
    create = MLv1Service.create_job

    def create_and_be_told(*args: Any) -> Any:
        job = create(*args)
        run.process.on_kill()
        return job

    monkeypatch.setattr(MLv1Service, "create_job", create_and_be_told)
    with pytest.raises(AirflowFailException, match="given up"):
        train()

    assert [state in ACTIVE for _, state in jobs_of(ml, run)] == [False]


def test_timeout_cancels_a_job_that_is_made_late(
    train: Callable[..., Any],
    run: TaskRun,
    ml: MLv1Service,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The service took the request, and is slow to make the job; the task's time is up."""
    proxy.script("POST", "/jobs?", [dataclasses.replace(faults.SLOW, delay=4.0)])
    train(dry_run=True)  # what can be loaded is loaded

    def alarm(*_: Any) -> None:
        raise AirflowTaskTimeout

    previous = signal.signal(signal.SIGALRM, alarm)
    create = MLv1Service.create_job

    def create_with_alarm(*args: Any) -> Any:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        return create(*args)

    monkeypatch.setattr(MLv1Service, "create_job", create_with_alarm)
    try:
        with pytest.raises(AirflowTaskTimeout):
            train()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    wait_for(lambda: bool(jobs_of(ml, run)), timeout=30, what="a job")

    assert [state in ACTIVE for _, state in jobs_of(ml, run)] == [False]


def test_timeout_between_submission_and_wait_cancels_the_job(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: Any) -> Any:
        raise AirflowTaskTimeout

    monkeypatch.setattr(AIPTrainingJobOperator, "_tell", slow)
    with pytest.raises(AirflowTaskTimeout):
        train(wait_for_completion=True, deferrable=True)

    assert [state in ACTIVE for _, state in jobs_of(ml, run)] == [False]


def test_date_of_a_deleted_run_can_be_backfilled(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    """Old runs were deleted, by a person or ``airflow db clean``; their jobs' ids are for ever."""
    train(0, wait_for_completion=True)
    backfill = dataclasses.replace(
        run,
        run_id="backfill__2026-11-14T00:00:00+00:00",
        run_type="backfill",
        store={},
        try_number=0,
        traceparent="00-backfill-01",
    )

    result = train(0, task=backfill, wait_for_completion=True)

    assert result["job_id"].endswith("_a002")


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": "2"},
        {"try_number": None},
        {"attempt": None},
        {"job_id": 7},
        {"api_endpoint": None},
        {"project_id": None},
    ],
    ids=str,
)
def test_ledger_that_somebody_spoilt_is_as_good_as_none(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service, change: dict[str, Any]
) -> None:
    job_id = train()["job_id"]
    run.store[LEDGER] |= change

    assert train()["job_id"] == job_id
    assert len(jobs_of(ml, run)) == 1


def test_ids_of_any_script_make_a_legal_job(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    odd = dataclasses.replace(
        run, dag_id="обучение.éà", run_id="manual~ü+:1", run_type="manual", store={}
    )
    job = ml.get_job(train(task=odd)["job_id"])
    verdict = Reaper(ml, "", lambda _: "running").look()

    assert [f.verdict for f in verdict if f.job_id == job["jobId"]] == [Verdict.KEPT]


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferrable", "in the worker"])
def test_task_timeout_while_the_deadline_is_kept_cancels_the_job_all_the_same(
    train: Callable[..., Any],
    run: TaskRun,
    ml: MLv1Service,
    deferrable: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancel = MLv1Service.cancel_job

    def interrupted(*_: Any) -> Any:
        monkeypatch.setattr(MLv1Service, "cancel_job", cancel)
        raise AirflowTaskTimeout

    monkeypatch.setattr(MLv1Service, "cancel_job", interrupted)
    unbounded = {"scheduling": {"maxRunningTime": "600s"}}
    with pytest.raises(AirflowTaskTimeout):
        train(
            timeout=1.0,
            wait_for_completion=True,
            deferrable=deferrable,
            training_input=unbounded,
        )

    assert [state in ACTIVE for _, state in jobs_of(ml, run)] == [False]


def test_labels_that_leave_no_room_for_the_tasks_own_make_no_job_and_lose_none(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    with pytest.raises(AirflowFailException, match="64"):
        train(labels={f"l{number}": "x" for number in range(60)})

    assert jobs_of(ml, run) == []
    job_id = train()["job_id"]

    # A retry keeps the job that is there.
    too_many = {f"l{number}": "x" for number in range(60)}
    assert train(labels=too_many, extra_args=["other"])["job_id"] == job_id


def test_backfill_of_an_unnamed_airflow_leaves_anothers_running_job_alone(
    train: Callable[..., Any], run: TaskRun, ml: MLv1Service
) -> None:
    """Without deployment names the same DAG's run elsewhere looks like a deleted one here."""
    theirs = train()["job_id"]
    ours = dataclasses.replace(run, run_type="backfill", run_id="backfill__2026-11-14", store={})
    ours.traceparent = "00-backfill-01"
    with pytest.raises(AirflowFailException, match="give each its own deployment name"):
        train(task=ours)

    assert state_of(ml, theirs) in ACTIVE
