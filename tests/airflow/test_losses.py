"""What looks like a task's end and is none: its job goes on, and stays the only one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import airflow_rows
import psutil
import pytest
from cluster import AirflowCluster
from processes import Component, stop, wait_for
from work import Work

ACTIVE = frozenset({"QUEUED", "PREPARING", "RUNNING"})
BOTH_WAYS = pytest.mark.parametrize("dag_id", ["hangs_deferred", "hangs_in_worker"])


@pytest.fixture(autouse=True)
def whole_airflow(airflow: AirflowCluster) -> Iterator[None]:
    """Whatever a test has killed is there again for the next one."""
    yield
    for component in airflow.components.values():
        component.start()
    airflow.wait_until_healthy()


def succeeds_with_one_job(work: Work, *, tries: int | None = None) -> None:
    """Assert that the task ends well, with the job it had from the start."""
    [job_id] = work.jobs()
    assert work.wait_for_task("success", "failed", timeout=300) == "success", work.told()
    assert work.jobs() == {job_id: "SUCCEEDED"}
    if tries is not None:
        assert work.task()["try_number"] == tries


# The triggerer ------------------------------------------------------------------------------------


def test_killed_triggerer_loses_and_doubles_nothing(submit: Callable[..., Work]) -> None:
    work = submit("hangs_deferred", seconds=15)
    work.end("triggerer", signal.SIGKILL)
    work.airflow.components["triggerer"].start()

    succeeds_with_one_job(work, tries=1)


@pytest.mark.long
def test_stopped_triggerer_leaves_the_job_alone(submit: Callable[..., Work]) -> None:
    work = submit("hangs_deferred", seconds=15)
    work.end("triggerer", signal.SIGTERM)

    assert work.states()[0] in ACTIVE | {"SUCCEEDED"}
    work.airflow.components["triggerer"].start()
    succeeds_with_one_job(work, tries=1)


@pytest.fixture
def start_second_triggerer(airflow: AirflowCluster) -> Iterator[Callable[[], Component]]:
    """Start another triggerer beside the first; it ends with the test."""
    name = "second-triggerer"
    yield lambda: airflow.add_triggerer(name)
    if component := airflow.components.pop(name, None):
        stop([component], grace=30)


@pytest.mark.long
def test_frozen_and_resumed_triggerer_leaves_the_job_to_the_one_that_took_over(
    submit: Callable[..., Work], start_second_triggerer: Callable[[], Component]
) -> None:
    """A machine that slept: Airflow tells the trigger to cancel, its task goes on elsewhere."""
    work = submit("hangs_deferred", seconds=120)
    owner = airflow_rows.triggerer_of(work)
    frozen = psutil.Process(work.airflow.components["triggerer"].pid)
    processes = [frozen, *frozen.children(recursive=True)]
    thaws_at = time.monotonic() + 40
    for process in processes:
        process.suspend()
    try:
        start_second_triggerer()
        work.wait_for("another triggerer", lambda: airflow_rows.triggerer_of(work) != owner)
        work.wait_for("the time to be over", lambda: time.monotonic() >= thaws_at)
        assert work.states() == ["RUNNING"]
    finally:
        for process in processes:
            process.resume()

    work.wait_for("on_kill", lambda: "invoking on_kill" in work.log())
    work.wait_for("its decision", lambda: "goes on: its task was not given up" in work.log())
    assert f"of run {work.run_id}: deferred, so it was not given up" in work.log()
    succeeds_with_one_job(work, tries=1)


# The worker ---------------------------------------------------------------------------------------


def test_killed_task_process_attaches_again(submit: Callable[..., Work]) -> None:
    work = submit("hangs_in_worker", seconds=15)
    os.kill(work.runner().pid, signal.SIGKILL)

    succeeds_with_one_job(work, tries=2)


@pytest.mark.long
def test_worker_that_is_told_to_stop_leaves_the_job_alone(submit: Callable[..., Work]) -> None:
    """A drained node: the task process gets SIGTERM while its task is wanted."""
    work = submit("hangs_in_worker", seconds=15)
    os.kill(work.runner().pid, signal.SIGTERM)

    succeeds_with_one_job(work)


@pytest.mark.long
def test_supervisor_that_is_told_to_stop_leaves_the_job_alone(
    submit: Callable[..., Work],
) -> None:
    work = submit("hangs_in_worker", seconds=15)
    work.supervisor().terminate()

    work.wait_for("its decision", lambda: "goes on: its task was not given up" in work.log())
    assert f"of run {work.run_id}: running, so it was not given up" in work.log()
    succeeds_with_one_job(work, tries=1)


def orphaned_runner(work: Work) -> psutil.Process:
    """Kill the supervisor of the task's process, and return that process."""
    runner, supervisor = work.runner(), work.supervisor()
    supervisor.kill()
    work.wait_for("an orphan", lambda: runner.ppid() != supervisor.pid)
    return runner


@pytest.mark.long
def test_orphaned_task_process_does_no_harm(submit: Callable[..., Work]) -> None:
    """The next try attaches while the old one's process still runs, and is told to stop."""
    work = submit("hangs_in_worker", seconds=100)
    orphan = orphaned_runner(work)
    orphan.terminate()

    attached = "is RUNNING: waiting for it"
    work.wait_for(
        "the next try",
        lambda: work.task()["try_number"] == 2 and attached in work.log(),
        timeout=150,
    )
    assert orphan.is_running()
    orphan.terminate()
    succeeds_with_one_job(work, tries=2)
    work.wait_for("the orphan's end", lambda: not orphan.is_running())
    assert work.states() == ["SUCCEEDED"]


@pytest.mark.long
def test_orphaned_task_process_leaves_a_cleared_tasks_new_job_alone(
    submit: Callable[..., Work],
) -> None:
    work = submit("hangs_in_worker", seconds=60)
    orphan = orphaned_runner(work)
    orphan.suspend()
    try:
        work.airflow.api.clear(work.dag_id, work.run_id, ["train"])
        work.wait_for_states("CANCELLED", "RUNNING", timeout=150)
        orphan.terminate()
    finally:
        orphan.resume()
    work.wait_for("the orphan's end", lambda: not orphan.is_running())

    assert work.wait_for_task("success", "failed", timeout=200) == "success"
    assert work.states() == ["CANCELLED", "SUCCEEDED"]


# The scheduler, the api-server, the training service ----------------------------------------------


@pytest.mark.long
@BOTH_WAYS
def test_killed_scheduler_loses_and_doubles_nothing(
    submit: Callable[..., Work], dag_id: str
) -> None:
    """With the scheduler die its workers; the task's own process goes on as an orphan."""
    work = submit(dag_id, seconds=15 if dag_id == "hangs_deferred" else 90)
    work.end("scheduler", signal.SIGKILL)
    work.airflow.components["scheduler"].start()

    succeeds_with_one_job(work)


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_api_server_that_is_away_for_a_minute_loses_and_doubles_nothing(
    submit: Callable[..., Work], signum: signal.Signals
) -> None:
    """Airflow stops the task process meanwhile, and gives no answer to what it asks."""
    dag_ids = ("hangs_deferred", "hangs_in_worker_patiently")
    works = [submit(dag_id, seconds=130) for dag_id in dag_ids]
    airflow = works[0].airflow
    airflow.kill("api-server", signum)
    back_at = time.monotonic() + 60
    try:
        wait_for(lambda: time.monotonic() > back_at, timeout=90, what="a minute to be over")
        assert [work.states() for work in works] == [["RUNNING"], ["RUNNING"]]
    finally:
        airflow.kill("api-server", signal.SIGCONT)
        airflow.components["api-server"].start()
    airflow.wait_until_healthy()

    for work in works:
        succeeds_with_one_job(work)


@pytest.mark.long
@BOTH_WAYS
def test_killed_training_service_loses_and_doubles_nothing(
    submit: Callable[..., Work], dag_id: str
) -> None:
    work = submit(dag_id, seconds=15)
    work.service.restart(signal.SIGKILL)

    succeeds_with_one_job(work, tries=1)


# Airflow's own races ------------------------------------------------------------------------------


@pytest.mark.long
def test_execute_that_is_called_again_while_its_trigger_runs_goes_on_with_the_job(
    submit: Callable[..., Work],
) -> None:
    """What Airflow's scheduler does to a deferred task now and then: it starts the try anew."""
    work = submit("hangs_deferred", seconds=40)
    airflow_rows.change_task(
        work, state="scheduled", next_method=None, next_kwargs=None, trigger_id=None
    )

    work.wait_for("execute", lambda: "is RUNNING: waiting for it" in work.log())
    succeeds_with_one_job(work, tries=1)
