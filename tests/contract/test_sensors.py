"""Sensors in each of Airflow's ways to wait, on real jobs of the embedded service."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralError,
    TaskDeferralTimeout,
    TaskDeferred,
)
from embedded import Service
from tasks import TaskRun
from trainer_wheel import WHEEL, job, wheel

from airflow_aiptraining.core.attempts import Stamp, job_labels
from airflow_aiptraining.core.reaping import Absent, TaskState
from airflow_aiptraining.core.task_keys import TaskKey
from airflow_aiptraining.exceptions import ServiceError
from airflow_aiptraining.hooks.training import AIPTrainingHook
from airflow_aiptraining.sensors import finding
from airflow_aiptraining.sensors.model_export import AIPModelExportSensor
from airflow_aiptraining.sensors.training_job import AIPTrainingJobSensor
from airflow_aiptraining.services.ml_v1 import MLv1Service
from airflow_aiptraining.triggers import deferral
from airflow_aiptraining.triggers.training_job import AIPTrainingJobTrigger

CONN = "aiptraining_sensors"
BUCKET = "sensors"
TASK = TaskKey("retrain", "train", "scheduled__2026-11-14T00:00:00+00:00")
DATE = "2026-11-14T00:00:00+00:00"

MODES = pytest.mark.parametrize("mode", ["poke", "reschedule", "deferrable"])
KINDS = pytest.mark.parametrize(
    "kind", [AIPTrainingJobSensor, AIPModelExportSensor], ids=["job", "model"]
)
_numbers = itertools.count()


@dataclass
class SensorRun(TaskRun):
    """One task instance of a sensor, over its reschedules too."""

    folder: Path = Path("/nowhere")
    first: datetime | None = None

    def context(self, operator: Any) -> Any:
        context = super().context(operator)
        context["ti"].get_first_reschedule_date = lambda _: self.first
        return context

    def wait(self, kind: type[Any], mode: str, **arguments: Any) -> Any:
        """Run the sensor to its end and return its value."""
        given = {"gcp_conn_id": CONN, "poke_interval": 0.2, "timeout": 30.0, **arguments}
        if kind is AIPModelExportSensor:
            given = {"settle_time": 0, **given}
        if mode == "deferrable":
            given["deferrable"] = True
        else:
            given |= {"deferrable": False, "mode": mode}
        while True:
            try:
                return self.execute(kind, **given)
            except AirflowRescheduleException as again:
                self.first = self.first or datetime.now(UTC)
                time.sleep(max(0.0, (again.reschedule_date - datetime.now(UTC)).total_seconds()))


@pytest.fixture(autouse=True)
def short_deferrals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferral, "SHORTEST_DEFERRAL", 0.1)
    monkeypatch.setattr("airflow_aiptraining.triggers.training_job._request_budget", lambda: 24_000)


@pytest.fixture(scope="module")
def ml(service: Service) -> Iterator[MLv1Service]:
    with pytest.MonkeyPatch.context() as patch:
        extra = {"service": "local", "api_endpoint": service.url, "deployment": "test"}
        connection = {"conn_type": "aiptraining", "extra": extra}
        patch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", json.dumps(connection))
        hook = AIPTrainingHook(CONN)
        bucket = hook.get_storage_client().create_bucket(BUCKET)
        bucket.blob(WHEEL).upload_from_string(wheel())
        yield hook.get_service()


@pytest.fixture(scope="module")
def train(ml: MLv1Service) -> Callable[..., str]:
    """Submit a job as the operator in ``TASK`` does; return its id."""

    def submit(job_id: str = "", *, seconds: float = 0.0, code: int = 0) -> str:
        job_id = job_id or f"job_{next(_numbers)}"
        labels = job_labels(deployment="test", task=TASK, spec="5bec", stamp=Stamp(0, ""))
        ml.create_job({**job(BUCKET, job_id, seconds=seconds, code=code), "labels": labels})
        return job_id

    return submit


@pytest.fixture(scope="module")
def endless(train: Callable[..., str], ml: MLv1Service) -> Iterator[str]:
    """A job that no sensor sees the end of."""
    job_id = train(seconds=600)
    yield job_id
    assert ml.get_job(job_id)["state"] == "RUNNING", "a sensor ended a job that isn't its own"
    ml.cancel_job(job_id)


@pytest.fixture(scope="module")
def ended(train: Callable[..., str], ml: MLv1Service) -> Callable[[int], str]:
    """Return a job that has ended with this code; one for all who ask."""
    known: dict[int, str] = {}

    def once(code: int) -> str:
        job_id = known[code] = known.get(code) or train(code=code)
        wait_for_end(ml, job_id)
        return job_id

    return once


def wait_for_end(ml: MLv1Service, job_id: str) -> None:
    deadline = time.monotonic() + 60
    while ml.get_job(job_id)["state"] not in ("SUCCEEDED", "FAILED", "CANCELLED"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def base() -> str:
    return f"base{next(_numbers)}"


def airflow_says(monkeypatch: pytest.MonkeyPatch, *states: TaskState) -> list[TaskKey]:
    """Let Airflow name these states of the training task in turn; the last one stays.

    :return: the tasks that it was asked for.
    """
    asked: list[TaskKey] = []

    def state(task: TaskKey) -> TaskState:
        asked.append(task)
        return states[min(len(asked), len(states)) - 1]

    monkeypatch.setattr(finding, "task_state", state)
    return asked


# -- each mode ---------------------------------------------------------------------------------


@MODES
@KINDS
def test_sensor_passes_when_the_running_job_has_succeeded(
    kind: type[Any], mode: str, train: Callable[..., str]
) -> None:
    job_id = train(seconds=0.5)

    assert SensorRun().wait(kind, mode, job_id=job_id)["job_id"] == job_id


@MODES
@KINDS
def test_failed_job_never_passes_and_is_skipped_only_where_that_is_asked_for(
    kind: type[Any], mode: str, ended: Callable[[int], str]
) -> None:
    job_id = ended(3)

    with pytest.raises(AirflowFailException, match=rf"{job_id}.* ended FAILED"):
        SensorRun().wait(kind, mode, job_id=job_id)
    for lenient in ("soft_fail", "never_fail"):
        with pytest.raises(AirflowSkipException, match=rf"{job_id}.* ended FAILED"):
            SensorRun().wait(kind, mode, job_id=job_id, **{lenient: True})
    with pytest.raises(AirflowFailException):
        SensorRun().wait(kind, mode, job_id=job_id, silent_fail=True)


@MODES
@KINDS
def test_sensor_that_times_out_fails_without_retry_or_skips_and_leaves_the_job_alone(
    kind: type[Any], mode: str, endless: str, ml: MLv1Service
) -> None:
    with pytest.raises(AirflowSensorTimeout):
        SensorRun().wait(kind, mode, job_id=endless, timeout=0.3)
    with pytest.raises(AirflowSkipException, match=r"(?i)timed out|within 0 s"):
        SensorRun().wait(kind, mode, job_id=endless, timeout=0.3, soft_fail=True)

    assert ml.get_job(endless)["state"] in ("QUEUED", "PREPARING", "RUNNING")


def test_deferred_time_out_names_the_job_and_the_cure(endless: str) -> None:
    with pytest.raises(AirflowSensorTimeout, match=rf"{endless}.* is .*[Rr]aise .*timeout"):
        SensorRun().wait(AIPTrainingJobSensor, "deferrable", job_id=endless, timeout=0.3)


@KINDS
def test_job_that_ends_as_the_deferred_sensor_times_out_passes(
    kind: type[Any], ended: Callable[[int], str]
) -> None:
    job_id = ended(0)
    told = {"event": "timeout", "job_id": job_id, "project_id": "local", "api_endpoint": None}
    sensor = SensorRun().operator(kind, job_id=job_id, gcp_conn_id=CONN, deferrable=True)

    value = sensor.execute_complete({}, told, job_id, time.time() - 1)

    assert value["job_id"] == job_id


@KINDS
def test_deferred_sensor_never_cancels(kind: type[Any], endless: str) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        run = SensorRun()
        sensor = run.operator(kind, job_id=endless, gcp_conn_id=CONN, deferrable=True)
        sensor.execute(run.context(sensor))

    assert isinstance(deferred.value.trigger, AIPTrainingJobTrigger)
    assert deferred.value.trigger.serialize()[1]["cancel_on_kill"] is False


@pytest.mark.parametrize("setting", ["True", "False"])
@KINDS
def test_airflows_default_decides_where_the_author_does_not(
    kind: type[Any], setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", setting)

    assert SensorRun().operator(kind, job_id="a").deferrable is (setting == "True")


# -- by base and date --------------------------------------------------------------------------


@MODES
@KINDS
def test_job_that_is_not_there_yet_is_waited_for(
    kind: type[Any], mode: str, base: str, train: Callable[..., str]
) -> None:
    timer = threading.Timer(0.5, train, [f"{base}_20261114_000000"])
    timer.start()
    value = SensorRun().wait(kind, mode, job_id_base=base, poke_interval=0.1)
    timer.join()

    assert value["job_id"] == f"{base}_20261114_000000"


def test_mapped_tasks_job_is_found_by_its_map_index(base: str, train: Callable[..., str]) -> None:
    train(f"{base}_20261114_000000_m00000", code=3)
    second = train(f"{base}_20261114_000000_m00001")
    value = SensorRun(map_index=7).wait(
        AIPTrainingJobSensor, "deferrable", job_id_base=base, logical_date=DATE, map_index=1
    )

    assert value["job_id"] == second


@pytest.mark.parametrize("end", ["FAILED", "CANCELLED"])
@KINDS
def test_attempt_that_ended_otherwise_is_not_the_end_while_its_task_goes_on(
    kind: type[Any],
    end: str,
    base: str,
    train: Callable[..., str],
    ml: MLv1Service,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other DAG's task is retried, or a person cleared it."""
    first = train(f"{base}_20261114_000000", seconds=600 if end == "CANCELLED" else 0.3, code=3)
    asked = airflow_says(monkeypatch, "deferred", "up_for_retry", None, "running")

    def retry() -> None:
        if end == "CANCELLED":
            ml.cancel_job(first)
        wait_for_end(ml, first)
        while len(asked) < 2:
            time.sleep(0.05)
        train(f"{first}_a002")

    thread = threading.Thread(target=retry)
    thread.start()
    value = SensorRun().wait(kind, "deferrable", job_id_base=base, poke_interval=0.1)
    thread.join()

    assert ml.get_job(first)["state"] == end
    assert value["job_id"] == f"{first}_a002"
    assert set(asked) == {TASK}


@MODES
@KINDS
def test_attempt_that_failed_for_good_fails_the_sensor_and_names_the_cure(
    kind: type[Any],
    mode: str,
    base: str,
    train: Callable[..., str],
    ml: MLv1Service,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = train(f"{base}_20261114_000000", code=3)
    wait_for_end(ml, first)
    airflow_says(monkeypatch, "running", "failed")

    with pytest.raises(AirflowFailException) as error:
        SensorRun().wait(kind, mode, job_id_base=base, poke_interval=0.1)
    assert "ended FAILED" in str(error.value)
    assert f"attempt 1 at {first!r}" in str(error.value)
    assert f"clear the task {TASK} to train again, then this one" in str(error.value)


@pytest.mark.parametrize("state", [*Absent, "success", "skipped", "removed"], ids=str)
def test_failed_attempt_counts_where_airflow_knows_of_no_other(
    state: TaskState,
    base: str,
    ended: Callable[[int], str],
    ml: MLv1Service,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = ml.get_job(ended(3))
    attempt = finding.Attempt(failed, finding.work_of_date({}, base, DATE), 1)  # type: ignore[typeddict-item]
    airflow_says(monkeypatch, state)

    assert attempt.task_that_goes_on(AIPTrainingHook(CONN)) == ""


def test_other_airflows_task_is_not_asked_for(
    base: str, ended: Callable[[int], str], ml: MLv1Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = ml.get_job(ended(3))
    monkeypatch.setenv("AIRFLOW__AIPTRAINING__DEPLOYMENT", "another")
    asked = airflow_says(monkeypatch, "running")
    attempt = finding.Attempt(failed, finding.work_of_date({}, base, DATE), 1)  # type: ignore[typeddict-item]

    assert attempt.task_that_goes_on(AIPTrainingHook(CONN)) == ""
    assert asked == []


@KINDS
def test_base_that_can_not_be_one_fails_without_retry(kind: type[Any], ml: MLv1Service) -> None:
    with pytest.raises(AirflowFailException, match="can't be used"):
        SensorRun().wait(kind, "deferrable", job_id_base="no-base")


# -- legs of a deferral ------------------------------------------------------------------------


def test_time_out_counts_over_all_legs(base: str, ml: MLv1Service) -> None:
    started = time.monotonic()
    with pytest.raises(AirflowSensorTimeout, match=rf"There is no job '{base}_20261114_000000'"):
        SensorRun().wait(
            AIPTrainingJobSensor, "deferrable", job_id_base=base, timeout=2.0, poke_interval=0.5
        )

    assert 2.0 <= time.monotonic() - started < 8


def test_model_that_is_not_whole_when_the_job_has_ended_is_waited_for_in_the_triggerer(
    train: Callable[..., str], ml: MLv1Service
) -> None:
    job_id = train()
    wait_for_end(ml, job_id)
    bucket = AIPTrainingHook(CONN).get_storage_client().bucket(BUCKET)
    late = threading.Timer(0.7, bucket.blob(f"{job_id}/net.onnx").upload_from_string, [b"net"])
    late.start()
    verdict = SensorRun().wait(
        AIPModelExportSensor,
        "deferrable",
        job_id=job_id,
        model_uri=f"gs://{BUCKET}/{job_id}",
        model_files="*.onnx",
        metrics=None,
    )
    late.join()

    assert [each["name"] for each in verdict["objects"]] == ["net.onnx"]


OTHER = {"event": "ended", "job_id": "another", "api_endpoint": "http://127.0.0.1:1", "state": ""}


@pytest.mark.parametrize(
    "event",
    [OTHER, {**OTHER, "event": "error", "message": "gone"}, datetime.now(UTC), None],
    ids=["another's end", "another's error", "a time", "nothing"],
)
@KINDS
def test_event_of_another_tasks_trigger_is_not_believed(
    kind: type[Any], event: Any, endless: str
) -> None:
    """SQLite gives a new trigger the id of one that was just deleted."""
    run = SensorRun()
    sensor = run.operator(kind, job_id=endless, gcp_conn_id=CONN, deferrable=True)

    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute_complete(run.context(sensor), event, endless, time.time() + 60)

    assert isinstance(deferred.value.trigger, AIPTrainingJobTrigger)
    assert deferred.value.trigger.job_id == endless


@KINDS
def test_job_that_can_not_be_read_any_more_is_an_error_that_a_retry_may_cure(
    kind: type[Any], endless: str
) -> None:
    run = SensorRun()

    def resume(**lenient: bool) -> Any:
        sensor = run.operator(kind, job_id=endless, gcp_conn_id=CONN, deferrable=True, **lenient)
        event = {"event": "error", "job_id": endless, "message": "HTTP 403", "api_endpoint": None}
        kwargs = {"event": event, "job_id": endless, "deadline": time.time() + 60}
        return sensor.resume_execution("execute_complete", kwargs, run.context(sensor))

    for lenient in ({}, {"soft_fail": True}):
        with pytest.raises(ServiceError, match=f"{endless}.*HTTP 403.*a retry"):
            resume(**lenient)
    with pytest.raises(AirflowSkipException, match="HTTP 403"):
        resume(never_fail=True)
    with pytest.raises(TaskDeferred):
        resume(silent_fail=True)


@KINDS
def test_end_by_airflow_itself_leaves_the_job_alone(
    kind: type[Any], endless: str, ml: MLv1Service
) -> None:
    """A trigger that can't be loaded is retried, Airflow's limit on triggers is a time-out."""
    run = SensorRun()
    sensor = run.operator(kind, job_id=endless, gcp_conn_id=CONN, deferrable=True)
    with pytest.raises(TaskDeferralError):
        sensor.resume_execution("__fail__", {"error": "TRIGGER_FAILURE"}, run.context(sensor))
    with pytest.raises(AirflowSensorTimeout) as error:
        sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, run.context(sensor))
    assert isinstance(error.value.__cause__, TaskDeferralTimeout)

    assert ml.get_job(endless)["state"] in ("QUEUED", "PREPARING", "RUNNING")


def test_task_that_an_earlier_version_deferred_goes_on(ended: Callable[[int], str]) -> None:
    job_id = ended(0)
    sensor = SensorRun().operator(
        AIPTrainingJobSensor, job_id=job_id, gcp_conn_id=CONN, deferrable=True
    )
    event = {"event": "ended", "job_id": job_id, "project_id": "local", "api_endpoint": None}

    assert sensor.execute_complete({}, event)["job_id"] == job_id
    assert sensor.execute_complete({}, event, job_id)["job_id"] == job_id


def test_legs_are_no_shorter_than_airflow_bears_and_bounded_by_the_time_out(
    endless: str, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferral, "SHORTEST_DEFERRAL", 3.0)

    def leg(**named: str) -> TaskDeferred:
        run = SensorRun()
        sensor = run.operator(
            AIPTrainingJobSensor,
            gcp_conn_id=CONN,
            deferrable=True,
            poke_interval=0.1,
            timeout=0.5,
            **named,
        )
        with pytest.raises(TaskDeferred) as deferred:
            sensor.execute(run.context(sensor))
        return deferred.value

    now = time.time()
    of_job, of_time = leg(job_id=endless), leg(job_id_base=base)
    assert now + 3 <= of_job.trigger.deadline < now + 20
    assert now + 3 <= of_time.trigger.moment.timestamp() < now + 20
    for each in (of_job, of_time):
        assert each.timeout is not None and each.timeout > timedelta(hours=1)
