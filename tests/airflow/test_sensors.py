"""Sensors on a real Airflow: each mode, its time-out, and what must leave the job alone."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from cluster import AirflowCluster
from google.auth.credentials import AnonymousCredentials
from processes import wait_for
from service import PROJECT, EmbeddedService
from trainer_wheel import WHEEL, job, wheel

from airflow_aiptraining.services.ml_v1 import MLv1Service

BUCKET = "sensed"
ENDS = frozenset({"success", "failed", "skipped", "upstream_failed"})
_numbers = itertools.count()


@pytest.fixture(scope="module")
def ml(service: EmbeddedService) -> Iterator[MLv1Service]:
    """The service; the jobs that a test leaves are cancelled at the end."""
    service.storage_client().create_bucket(BUCKET).blob(WHEEL).upload_from_string(wheel())
    ml = MLv1Service(PROJECT, AnonymousCredentials(), api_endpoint=service.url)
    yield ml
    for state in ("QUEUED", "PREPARING", "RUNNING"):
        for left in ml.list_jobs(f"jobId:sensed* AND state={state}"):
            ml.cancel_job(left["jobId"])


@pytest.fixture(scope="module")
def train(ml: MLv1Service) -> Callable[..., str]:
    """Submit a job that belongs to no task; return its id."""

    def submit(seconds: float) -> str:
        job_id = f"sensed_{next(_numbers)}_{time.time_ns()}"
        ml.create_job(job(BUCKET, job_id, seconds=seconds))
        return job_id

    return submit


@dataclass
class Sensing:
    """One run of a DAG with sensors."""

    airflow: AirflowCluster
    dag_id: str
    run_id: str

    @classmethod
    def start(cls, airflow: AirflowCluster, dag_id: str, **conf: str) -> Sensing:
        """Start a run."""
        airflow.api.wait_for_dags([dag_id], timeout=180)
        airflow.api.unpause(dag_id)
        run_id = f"{dag_id}-{next(_numbers)}"
        airflow.api.trigger(dag_id, conf=conf, run_id=run_id)
        return cls(airflow, dag_id, run_id)

    def states(self) -> list[str | None]:
        """Return the states of all task instances."""
        return [task["state"] for task in self.tasks()]

    def tasks(self) -> list[dict[str, Any]]:
        """Return all task instances."""
        return self.airflow.api.task_instances(self.dag_id, self.run_id)

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until a condition of this run holds."""
        wait_for(
            condition,
            timeout=240,
            interval=0.5,
            what=lambda: f"{what} in {self.run_id}: {self.states()}\n{self.log('job')[-3000:]}",
        )

    def end(self) -> list[str | None]:
        """Return the states of all task instances once they have ended."""
        self.wait_for("the end", lambda: set(self.states()) <= ENDS)
        return self.states()

    def log(self, task_id: str, try_number: int = 1) -> str:
        """Return a try's log."""
        return self.airflow.api.log(self.dag_id, self.run_id, task_id, try_number)

    def wait_until_watched(self, job_id: str) -> None:
        """Wait until a triggerer watches the job for both sensors: these are a trigger's words."""
        told = f"Job {job_id} is RUNNING."
        self.wait_for(
            "triggers",
            lambda: (
                self.states() == ["deferred"] * 2
                and all(told in self.log(task_id) for task_id in ("job", "model"))
            ),
        )


@pytest.mark.parametrize(
    "mode",
    [
        "deferred",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("in_worker", "rescheduled")),
    ],
)
def test_sensors_pass_when_the_job_has_succeeded(
    mode: str, airflow: AirflowCluster, train: Callable[..., str]
) -> None:
    job_id = train(10)
    run = Sensing.start(airflow, f"senses_{mode}", job_id=job_id)

    assert run.end() == ["success"] * 2
    for task_id in ("job", "model"):
        assert airflow.api.xcom(run.dag_id, run.run_id, task_id)["job_id"] == job_id


@pytest.mark.long
def test_time_outs_fail_or_skip_at_once_and_leave_the_job_alone(
    airflow: AirflowCluster, train: Callable[..., str], ml: MLv1Service
) -> None:
    job_id = train(900)
    modes = ("in_worker", "rescheduled", "deferred")
    strict = [Sensing.start(airflow, f"senses_{one}_short", job_id=job_id) for one in modes]
    lenient = [Sensing.start(airflow, f"senses_{one}_lenient", job_id=job_id) for one in modes]

    assert [run.end() for run in strict] == [["failed"] * 2] * 3
    assert [run.end() for run in lenient] == [["skipped"] * 2] * 3
    assert {task["try_number"] for run in (*strict, *lenient) for task in run.tasks()} == {1}
    assert ml.get_job(job_id)["state"] == "RUNNING"
    assert f"Job {job_id!r} is RUNNING." in strict[2].log("job")


@pytest.mark.long
def test_job_of_a_sensor_that_is_marked_failed_or_cleared_runs_on(
    airflow: AirflowCluster, train: Callable[..., str], ml: MLv1Service
) -> None:
    job_id = train(60)
    run = Sensing.start(airflow, "senses_deferred", job_id=job_id)
    run.wait_until_watched(job_id)
    for task_id in ("job", "model"):
        airflow.api.set_state(run.dag_id, run.run_id, task_id, "failed")

    # A cancel by a trigger comes within about two seconds.
    until = time.monotonic() + 8
    while time.monotonic() < until:
        assert ml.get_job(job_id)["state"] == "RUNNING"
        time.sleep(0.5)
    assert run.states() == ["failed"] * 2

    airflow.api.clear(run.dag_id, run.run_id, ["job", "model"])
    assert run.end() == ["success"] * 2


@pytest.mark.long
def test_sensors_outlive_a_killed_triggerer(
    airflow: AirflowCluster, train: Callable[..., str]
) -> None:
    job_id = train(25)
    run = Sensing.start(airflow, "senses_deferred", job_id=job_id)
    run.wait_until_watched(job_id)
    triggerer = airflow.components["triggerer"]
    airflow.kill("triggerer", signal.SIGKILL)
    wait_for(lambda: not triggerer.is_running(), timeout=30, what="the triggerer's end")
    triggerer.start()

    assert run.end() == ["success"] * 2
    assert {task["try_number"] for task in run.tasks()} == {1}


@pytest.mark.long
def test_sensor_waits_on_while_the_failed_attempts_task_is_up_for_retry(
    airflow: AirflowCluster,
) -> None:
    run = Sensing.start(airflow, "senses_another_attempt")

    assert run.end() == ["success"] * 2
    assert airflow.api.xcom(run.dag_id, run.run_id, "job")["job_id"].endswith("_a002")
    assert "another attempt may follow" in run.log("job")


@pytest.mark.long
def test_each_mapped_sensor_waits_for_its_own_job(
    airflow: AirflowCluster, train: Callable[..., str]
) -> None:
    jobs = [train(3), train(3)]
    run = Sensing.start(airflow, "senses_mapped", job_id=jobs[0], other=jobs[1])

    assert run.end() == ["success"] * 2
    found = [
        airflow.api.xcom(run.dag_id, run.run_id, "job", map_index=index)["job_id"]
        for index in (0, 1)
    ]
    assert found == jobs
