"""A job is cancelled when its task was given up, and only then: a row for each event."""

from __future__ import annotations

from collections.abc import Callable

import airflow_rows
import pytest
from cluster import AirflowCluster
from processes import wait_for
from service import EmbeddedService
from work import Work


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


@pytest.mark.parametrize(
    "dag_id",
    ["hangs_run_timeout", pytest.param("hangs_run_timeout_in_worker", marks=pytest.mark.long)],
)
def test_run_timeout_has_its_job_cancelled(submit: Callable[..., Work], dag_id: str) -> None:
    work = submit(dag_id)

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
def test_deleted_dag_has_its_job_cancelled(
    airflow: AirflowCluster, service: EmbeddedService
) -> None:
    """Airflow lets people delete a DAG with deferred tasks; the task instance is gone then."""
    dag_id = "hangs_until_deleted"
    airflow.api.wait_for_dags([dag_id])
    airflow.api.unpause(dag_id)
    work = Work(airflow, service, dag_id, airflow.api.trigger(dag_id, run_id=dag_id))
    work.wait_for("a waiting task", work.is_waiting)
    airflow.api.call("DELETE", f"/api/v2/dags/{dag_id}")

    wait_for(lambda: work.states() == ["CANCELLED"], timeout=90, what="a cancelled job")


@pytest.mark.long
def test_airflows_own_limit_on_triggers_cancels_the_job(submit: Callable[..., Work]) -> None:
    """The backstop behind the deadline: the task is resumed only to fail."""
    work = submit("hangs_long_deadline")
    airflow_rows.change_task(work, trigger_timeout="2026-01-01 00:00:00.000000")

    work.wait_for("the first job's end", lambda: work.states()[:1] == ["CANCELLED"])
    work.wait_for_states("CANCELLED", "RUNNING")
    log = work.airflow.api.log(work.dag_id, work.run_id, "train", 1)
    assert "was not done 900 s after it was created; it was cancelled" in log
    work.mark_run("failed")


@pytest.mark.long
@pytest.mark.parametrize("dag_id", ["hangs_kept", "hangs_kept_in_worker"])
def test_job_that_is_to_be_kept_runs_on(submit: Callable[..., Work], dag_id: str) -> None:
    work = submit(dag_id)
    [job_id] = work.jobs()
    runner = None if dag_id == "hangs_kept" else work.runner()
    work.airflow.api.set_state(work.dag_id, work.run_id, "train", "failed")
    if runner is None:
        work.wait_for("on_kill", lambda: "invoking on_kill" in work.log())
    else:
        work.wait_for("the task process's end", lambda: not runner.is_running())

    assert work.states() == ["RUNNING"]
    assert work.reap() == []
    work.service.cancel(job_id)


@pytest.mark.long
def test_job_whose_worker_was_lost_on_the_last_try_is_left_to_the_reaper(
    submit: Callable[..., Work],
) -> None:
    """Airflow fails the task and tells nobody; the task's own process knows of nothing."""
    work = submit("hangs_in_worker_without_retries")
    orphan = work.runner()
    work.supervisor().kill()

    assert work.wait_for_task("failed", "up_for_retry", timeout=150) == "failed"
    assert work.states() == ["RUNNING"]
    assert work.reap() == list(work.jobs())
    work.wait_for_states("CANCELLED")
    work.wait_for("the orphan's end", lambda: not orphan.is_running())


@pytest.mark.parametrize(
    "dag_id", ["hangs_deferred", pytest.param("hangs_in_worker", marks=pytest.mark.long)]
)
def test_job_cancelled_by_a_person_fails_the_task_for_good(
    submit: Callable[..., Work], dag_id: str
) -> None:
    work = submit(dag_id)
    work.service.cancel(next(iter(work.jobs())))

    assert work.wait_for_task("failed", "up_for_retry", "success") == "failed"
    assert work.states() == ["CANCELLED"]
    log = work.airflow.api.log(work.dag_id, work.run_id, "train")
    assert "cancelled outside Airflow; clear the task to train again" in log
