"""A job is cancelled when its task was given up, and only then: a row for each event."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
from cluster import AirflowCluster
from processes import wait_for
from service import EmbeddedService

DAGS = (
    "hangs_deferred",
    "hangs_in_worker",
    "hangs_kept",
    "hangs_deadline",
    "hangs_deadline_in_worker",
    "hangs_run_timeout",
    "hangs_task_timeout",
)
ACTIVE = frozenset({"QUEUED", "PREPARING", "RUNNING"})


@dataclass
class Work:
    """One run of one of the DAGs, and the jobs that it made."""

    airflow: AirflowCluster
    service: EmbeddedService
    dag_id: str
    run_id: str

    def jobs(self) -> dict[str, str]:
        """Return id and state of this run's jobs, by id, so by attempt."""
        label = self.run_id.lower()
        found = {
            job["jobId"]: job["state"]
            for job in self.service.jobs()
            if job["labels"]["airflow-dag"] == self.dag_id and job["labels"]["airflow-run"] == label
        }
        return dict(sorted(found.items()))

    def states(self) -> list[str]:
        """Return the states of this run's jobs, by attempt."""
        return list(self.jobs().values())

    def task(self) -> dict[str, Any]:
        """Return the task instance."""
        [instance] = self.airflow.api.task_instances(self.dag_id, self.run_id)
        return instance

    def is_waiting(self) -> bool:
        """Tell whether the job runs and somebody watches it: the worker, or a trigger."""
        if self.states()[-1:] != ["RUNNING"] or self.task()["state"] not in ("running", "deferred"):
            return False
        # A deferred task that no triggerer has picked up yet is given up without anybody knowing.
        return f"Job {list(self.jobs())[-1]} is RUNNING" in self.log()

    def log(self) -> str:
        """Return the log of the task's latest try."""
        number = self.task()["try_number"] or 1
        return self.airflow.api.log(self.dag_id, self.run_id, "train", number)

    def wait_for(self, what: str, condition: Callable[[], bool], timeout: float = 90) -> None:
        """Wait until a condition of this run holds."""
        wait_for(condition, timeout=timeout, interval=0.3, what=lambda: f"{what}: {self.told()}")

    def wait_for_states(self, *states: str, timeout: float = 90) -> None:
        """Wait until the run's jobs, by attempt, are in these states."""
        self.wait_for(
            f"jobs of {self.dag_id} to be {states}",
            lambda: self.states() == list(states),
            timeout=timeout,
        )

    def wait_for_task(self, *states: str, timeout: float = 90) -> str:
        """Wait until the task is in one of these states, and return it."""
        wanted = frozenset(states)
        api = self.airflow.api
        found = api.wait_for_task(self.dag_id, self.run_id, "train", states=wanted, timeout=timeout)
        return str(found["state"])

    def told(self) -> str:
        """Return what there is to know, for a failure."""
        task = self.task()
        told = f"jobs {self.jobs()}, task {task['state']} (try {task['try_number']})"
        return f"{told}\n{self.log()[-3000:]}"

    def mark_run(self, state: str) -> None:
        """Mark the run, as a person does in the UI."""
        path = f"/api/v2/dags/{self.dag_id}/dagRuns/{self.run_id}"
        self.airflow.api.call("PATCH", path, json={"state": state})


@pytest.fixture(scope="module")
def submit(airflow: AirflowCluster, service: EmbeddedService) -> Iterator[Callable[..., Work]]:
    """Start a run whose task waits for its running job."""
    airflow.api.wait_for_dags(DAGS)
    for dag_id in DAGS:
        airflow.api.unpause(dag_id)
    made: list[Work] = []

    def start(dag_id: str, seconds: int = 600) -> Work:
        run_id = f"{dag_id}-{len(made)}"
        airflow.api.trigger(dag_id, conf={"seconds": seconds}, run_id=run_id)
        work = Work(airflow, service, dag_id, run_id)
        made.append(work)
        work.wait_for("a waiting task", work.is_waiting)
        return work

    yield start
    for work in made:
        if work.task()["state"] not in ("success", "failed", "skipped"):
            work.mark_run("failed")


@pytest.mark.parametrize("state", ["failed", pytest.param("success", marks=pytest.mark.long)])
@pytest.mark.parametrize("dag_id", ["hangs_deferred", "hangs_in_worker"])
def test_marked_task_has_its_job_cancelled(
    submit: Callable[..., Work], dag_id: str, state: str
) -> None:
    work = submit(dag_id)
    work.airflow.api.set_state(dag_id, work.run_id, "train", state)

    work.wait_for_states("CANCELLED")
    assert work.task()["state"] == state


@pytest.mark.parametrize("dag_id", ["hangs_deferred", "hangs_in_worker"])
def test_cleared_task_trains_again_after_its_old_job_has_ended(
    submit: Callable[..., Work], dag_id: str
) -> None:
    work = submit(dag_id)
    work.airflow.api.clear(dag_id, work.run_id, ["train"])

    work.wait_for_states("CANCELLED", "RUNNING")
    first, second = (
        next(job for job in work.service.jobs() if job["jobId"] == job_id) for job_id in work.jobs()
    )
    assert first["endTime"] <= second["createTime"]


@pytest.mark.long
@pytest.mark.parametrize("dag_id", ["hangs_deferred", "hangs_in_worker"])
def test_failed_run_has_its_job_cancelled(submit: Callable[..., Work], dag_id: str) -> None:
    work = submit(dag_id)
    work.mark_run("failed")

    work.wait_for_states("CANCELLED")


def test_run_timeout_has_its_job_cancelled(submit: Callable[..., Work]) -> None:
    work = submit("hangs_run_timeout")

    work.wait_for_states("CANCELLED")
    assert work.wait_for_task("skipped", "failed") == "skipped"


@pytest.mark.parametrize(
    "dag_id",
    ["hangs_deadline", pytest.param("hangs_deadline_in_worker", marks=pytest.mark.long)],
)
def test_deadline_cancels_the_job_and_fails_the_try(
    submit: Callable[..., Work], dag_id: str
) -> None:
    work = submit(dag_id)

    work.wait_for("a second try", lambda: len(work.jobs()) >= 2)
    assert work.states()[0] == "CANCELLED"
    log = work.airflow.api.log(dag_id, work.run_id, "train", 1)
    assert "was not done 6 s after it was created; it was cancelled" in log
    work.mark_run("failed")


def test_task_timeout_in_a_worker_cancels_the_job(submit: Callable[..., Work]) -> None:
    work = submit("hangs_task_timeout")

    work.wait_for("the first job's end", lambda: work.states()[:1] == ["CANCELLED"])
    work.mark_run("failed")


@pytest.mark.long
def test_job_that_is_to_be_kept_runs_on(submit: Callable[..., Work]) -> None:
    work = submit("hangs_kept")
    work.airflow.api.set_state(work.dag_id, work.run_id, "train", "failed")
    work.wait_for(
        "the trigger's end",
        lambda: (
            "on_kill" in work.airflow.components["triggerer"].log.read_text()
            or work.task()["state"] == "failed"
        ),
    )

    assert work.states() == ["RUNNING"]
    work.service.cancel(next(iter(work.jobs())))


# What looks like an end and is none ---------------------------------------------------------------


def test_killed_triggerer_loses_and_doubles_nothing(submit: Callable[..., Work]) -> None:
    work = submit("hangs_deferred", seconds=15)
    triggerer = work.airflow.components["triggerer"]
    work.airflow.kill("triggerer", signal.SIGKILL)
    wait_for(lambda: not triggerer.is_running(), timeout=10, what="the triggerer's end")
    triggerer.start()

    assert work.wait_for_task("success", "failed", timeout=150) == "success"
    assert work.states() == ["SUCCEEDED"]


def test_stopped_triggerer_leaves_the_job_alone(submit: Callable[..., Work]) -> None:
    work = submit("hangs_deferred", seconds=15)
    triggerer = work.airflow.components["triggerer"]
    work.airflow.kill("triggerer", signal.SIGTERM)
    wait_for(lambda: not triggerer.is_running(), timeout=30, what="the triggerer's end")

    assert work.states()[0] in ACTIVE | {"SUCCEEDED"}
    triggerer.start()
    assert work.wait_for_task("success", "failed", timeout=150) == "success"
    assert work.states() == ["SUCCEEDED"]


def test_killed_task_process_attaches_again(submit: Callable[..., Work]) -> None:
    work = submit("hangs_in_worker", seconds=15)
    os.kill(runner_of(work).pid, signal.SIGKILL)

    assert work.wait_for_task("success", "failed") == "success"
    assert work.states() == ["SUCCEEDED"]
    assert work.task()["try_number"] == 2


def test_worker_that_is_told_to_stop_leaves_the_job_alone(submit: Callable[..., Work]) -> None:
    """A drained node: the task process gets SIGTERM while its task is wanted."""
    work = submit("hangs_in_worker", seconds=15)
    os.kill(runner_of(work).pid, signal.SIGTERM)

    assert work.wait_for_task("success", "failed") == "success"
    assert work.states() == ["SUCCEEDED"]


@pytest.mark.long
def test_killed_scheduler_loses_and_doubles_nothing(submit: Callable[..., Work]) -> None:
    work = submit("hangs_deferred", seconds=15)
    scheduler = work.airflow.components["scheduler"]
    work.airflow.kill("scheduler", signal.SIGKILL)
    wait_for(lambda: not scheduler.is_running(), timeout=10, what="the scheduler's end")
    scheduler.start()

    assert work.wait_for_task("success", "failed", timeout=150) == "success"
    assert work.states() == ["SUCCEEDED"]


def test_killed_training_service_loses_and_doubles_nothing(submit: Callable[..., Work]) -> None:
    work = submit("hangs_deferred", seconds=15)
    work.service.restart(signal.SIGKILL)

    assert work.wait_for_task("success", "failed", timeout=150) == "success"
    assert work.states() == ["SUCCEEDED"]


def test_job_cancelled_by_a_person_fails_the_task_for_good(submit: Callable[..., Work]) -> None:
    work = submit("hangs_deferred")
    work.service.cancel(next(iter(work.jobs())))

    assert work.wait_for_task("failed", "up_for_retry", "success") == "failed"
    assert work.states() == ["CANCELLED"]
    log = work.airflow.api.log(work.dag_id, work.run_id, "train")
    assert "cancelled outside Airflow; clear the task to train again" in log


def runner_of(work: Work) -> psutil.Process:
    """Return the process that executes the run's task: it holds the task's waiting loop."""
    return psutil.Process(int(work.task()["pid"]))
