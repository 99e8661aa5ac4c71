"""A job is cancelled when its task was given up, and only then: a row for each event."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from work import Work

ACTIVE = frozenset({"QUEUED", "PREPARING", "RUNNING"})


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
    work.end("triggerer", signal.SIGKILL)
    work.airflow.components["triggerer"].start()

    assert work.wait_for_task("success", "failed", timeout=150) == "success"
    assert work.states() == ["SUCCEEDED"]


def test_stopped_triggerer_leaves_the_job_alone(submit: Callable[..., Work]) -> None:
    work = submit("hangs_deferred", seconds=15)
    work.end("triggerer", signal.SIGTERM)

    assert work.states()[0] in ACTIVE | {"SUCCEEDED"}
    work.airflow.components["triggerer"].start()
    assert work.wait_for_task("success", "failed", timeout=150) == "success"
    assert work.states() == ["SUCCEEDED"]


def test_killed_task_process_attaches_again(submit: Callable[..., Work]) -> None:
    work = submit("hangs_in_worker", seconds=15)
    os.kill(work.runner().pid, signal.SIGKILL)

    assert work.wait_for_task("success", "failed") == "success"
    assert work.states() == ["SUCCEEDED"]
    assert work.task()["try_number"] == 2


def test_worker_that_is_told_to_stop_leaves_the_job_alone(submit: Callable[..., Work]) -> None:
    """A drained node: the task process gets SIGTERM while its task is wanted."""
    work = submit("hangs_in_worker", seconds=15)
    os.kill(work.runner().pid, signal.SIGTERM)

    assert work.wait_for_task("success", "failed") == "success"
    assert work.states() == ["SUCCEEDED"]


@pytest.mark.long
def test_killed_scheduler_loses_and_doubles_nothing(submit: Callable[..., Work]) -> None:
    work = submit("hangs_deferred", seconds=15)
    work.end("scheduler", signal.SIGKILL)
    work.airflow.components["scheduler"].start()

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
