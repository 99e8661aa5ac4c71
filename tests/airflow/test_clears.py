"""A retry goes on with the job that is there; a person's clear trains again: on real processes.

Whatever Airflow and people do, two attempts of one task never run at the same time, none is made
without need, and a task's result is its last attempt's.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from airflow_api import AirflowApiError
from cluster import AirflowCluster
from service import EmbeddedService
from stories import Play, Run, Stage, Story, perform

from airflow_aiptraining.core.task_keys import TaskKey

pytestmark = pytest.mark.timeout(1800)

STORIES: list[tuple[Callable[..., Story], str]] = []
#: Short and telling; the others run in the long matrix only.
EVERY_DAY = {
    "retry_after_an_exception_takes_the_result_of_a_job_that_succeeded-breaks_in_execute_complete",
    "retry_of_one_map_index_leaves_the_other_alone-mapped",
    "clear_of_a_succeeded_task_trains_again-deferred",
    "clear_of_a_task_that_waits_for_its_retry_ends_its_job_first-breaks_later",
}


def told(*dags: str) -> Callable[[Callable[..., Story]], Callable[..., Story]]:
    """Play a story, once with each of these DAGs (``told_...`` in ``dags/telling.py``)."""

    def keep(story: Callable[..., Story]) -> Callable[..., Story]:
        STORIES.extend((story, dag) for dag in dags)
        return story

    return keep


def _begin(play: Play, dag: str) -> Run:
    return play.begin(f"told_{dag}", indices=2 if "mapped" in dag else 0)


# A retry ------------------------------------------------------------------------------------------


@told("breaks_in_execute")
def retry_after_an_exception_in_execute_attaches(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    assert run.instance()["try_number"] > 1
    run.succeed()
    yield run.ends("success", "SUCCEEDED")


@told("breaks_in_execute_in_worker", "breaks_in_execute_complete")
def retry_after_an_exception_takes_the_result_of_a_job_that_succeeded(
    play: Play, dag: str
) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.succeed()
    yield run.ends("success", "SUCCEEDED")


@told("deferred", "in_worker")
def retry_after_a_failed_job_makes_the_next_attempt(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.fail()
    yield run.jobs("FAILED", "RUNNING")
    run.succeed()
    yield run.ends("success", "FAILED", "SUCCEEDED")


@told("mapped")
def retry_of_one_map_index_leaves_the_other_alone(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run[0].fail()
    yield run[0].jobs("FAILED", "RUNNING")
    run[0].succeed()
    run[1].succeed()
    yield run[0].ends("success", "FAILED", "SUCCEEDED")
    yield run[1].ends("success", "SUCCEEDED")


@told("in_worker")
def retry_after_a_killed_task_process_attaches(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    os.kill(_runner(run).pid, signal.SIGKILL)
    yield lambda: run.instance()["try_number"] > 1 and run.jobs("RUNNING")()
    run.succeed()
    yield run.ends("success", "SUCCEEDED")


@told("in_worker")
def retry_after_a_killed_supervisor_attaches(play: Play, dag: str) -> Story:
    """The task process lives on without a supervisor, and must do no harm."""
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    orphan = _runner(run)
    os.kill(orphan.ppid(), signal.SIGKILL)
    yield lambda: run.instance()["try_number"] > 1 and run.jobs("RUNNING")()
    run.succeed()
    yield run.ends("success", "SUCCEEDED")
    yield lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE


@told("breaks_in_execute_complete")
def retry_after_only_its_upstream_was_cleared_takes_the_result(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    up = TaskKey(run.dag_id, "up", run.run_id)
    first = play.stage.instances[up]["id"]
    play.stage.airflow.api.clear(run.dag_id, run.run_id, ["up"])
    yield (
        lambda: (
            play.stage.instances[up]["id"] != first
            and play.stage.instances[up]["state"] == "success"
            and run.jobs("RUNNING")()
        )
    )
    run.succeed()
    yield run.ends("success", "SUCCEEDED")


# A clear of a task that has ended -----------------------------------------------------------------


@told("deferred", "in_worker", "mapped")
def clear_of_a_succeeded_task_trains_again(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.succeed()
    yield run.has_ended("success")
    run.clear()
    yield run.jobs("SUCCEEDED", "RUNNING")
    run.succeed()
    yield run.ends("success", "SUCCEEDED", "SUCCEEDED")


@told("deferred")
def clear_after_a_retry_trains_again(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.fail()
    yield run.jobs("FAILED", "RUNNING")
    run.succeed()
    yield run.has_ended("success")
    run.clear()
    yield run.jobs("FAILED", "SUCCEEDED", "RUNNING")
    run.succeed()
    yield run.ends("success", "FAILED", "SUCCEEDED", "SUCCEEDED")


@told("once_deferred", "once_in_worker")
def clear_of_a_failed_task_without_retries_trains_again(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.fail()
    yield run.has_ended("failed")
    run.clear()
    yield run.jobs("FAILED", "RUNNING")
    run.succeed()
    yield run.ends("success", "FAILED", "SUCCEEDED")


@told("twice")
def clear_of_a_task_whose_retries_are_used_up_trains_again(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.fail()
    yield run.jobs("FAILED", "RUNNING")
    run.fail()
    yield run.has_ended("failed")
    run.clear()
    yield run.jobs("FAILED", "FAILED", "RUNNING")
    run.succeed()
    yield run.ends("success", "FAILED", "FAILED", "SUCCEEDED")


@told("mapped")
def clear_of_one_map_index_leaves_the_other_alone(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.succeed()
    yield run.has_ended("success")
    run[0].clear()
    yield run[0].jobs("SUCCEEDED", "RUNNING")
    run[0].succeed()
    yield run[0].ends("success", "SUCCEEDED", "SUCCEEDED")
    yield run[1].ends("success", "SUCCEEDED")


@told("mapped")
def clear_within_a_run_that_goes_on_trains_again(play: Play, dag: str) -> Story:
    """The run isn't reset, so only the retries left tell of the clear."""
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run[0].succeed()
    yield run[0].task("success")
    run[0].clear(reset_run=False)
    yield run[0].jobs("SUCCEEDED", "RUNNING")
    run.succeed()
    yield run[0].ends("success", "SUCCEEDED", "SUCCEEDED")
    yield run[1].ends("success", "SUCCEEDED")


@told("downstream")
def clear_of_the_upstream_with_downstream_trains_again(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.succeed()
    yield run.has_ended("success")
    play.stage.airflow.api.clear(run.dag_id, run.run_id, ["up"], downstream=True)
    yield run.jobs("SUCCEEDED", "RUNNING")
    # And while it waits.
    play.stage.airflow.api.clear(run.dag_id, run.run_id, ["up"], downstream=True)
    yield run.jobs("SUCCEEDED", "CANCELLED", "RUNNING")
    run.succeed()
    yield run.ends("success", "SUCCEEDED", "CANCELLED", "SUCCEEDED")


@told("mapped")
def cleared_run_trains_all_again(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.succeed()
    yield run.has_ended("success")
    play.stage.airflow.api.clear_run(run.dag_id, run.run_id, only_failed=False)
    yield run.jobs("SUCCEEDED", "RUNNING")
    run.succeed()
    yield run.ends("success", "SUCCEEDED", "SUCCEEDED")


@told("once_mapped")
def run_cleared_for_what_failed_trains_only_that_again(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run[0].fail()
    run[1].succeed()
    yield run.has_ended("success", "failed")
    play.stage.airflow.api.clear_run(run.dag_id, run.run_id, only_failed=True)
    yield run[0].jobs("FAILED", "RUNNING")
    run[0].succeed()
    yield run[0].ends("success", "FAILED", "SUCCEEDED")
    yield run[1].ends("success", "SUCCEEDED")


# A clear of a task that has not ended -------------------------------------------------------------


@told("deferred", "in_worker", "mapped", "once_in_worker")
def clear_of_a_waiting_task_trains_again(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.clear()
    yield run.jobs("CANCELLED", "RUNNING")
    run.succeed()
    yield run.ends("success", "CANCELLED", "SUCCEEDED")


@told("deferred", "in_worker", "in_worker", "once_in_worker")
def clear_of_a_waiting_task_whose_run_is_not_reset_trains_again(play: Play, dag: str) -> Story:
    """In a worker nothing tells this clear from a retry but the job, cancelled by the old try."""
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.clear(reset_run=False)
    yield run.jobs("CANCELLED", "RUNNING")
    run.succeed()
    yield run.ends("success", "CANCELLED", "SUCCEEDED")


@told("in_worker")
def clear_of_a_running_task_whose_processes_die_trains_again(play: Play, dag: str) -> Story:
    """Nobody cancels the old attempt but the new try, and Airflow counts no more retries."""
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    runner = _runner(run)
    supervisor = psutil.Process(runner.ppid())
    supervisor.suspend()
    runner.suspend()
    run.clear()
    supervisor.kill()
    runner.kill()
    yield run.jobs("CANCELLED", "RUNNING")
    run.succeed()
    yield run.ends("success", "CANCELLED", "SUCCEEDED")


@told("in_worker")
def second_clear_of_a_task_that_is_restarting_makes_one_attempt(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.clear()
    run.clear()
    yield run.jobs("CANCELLED", "RUNNING")
    run.succeed()
    yield run.ends("success", "CANCELLED", "SUCCEEDED")


@told("deferred")
def two_clears_in_a_row_train_twice_again(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.clear()
    yield run.jobs("CANCELLED", "RUNNING")
    run.clear()
    yield run.jobs("CANCELLED", "CANCELLED", "RUNNING")
    run.succeed()
    yield run.ends("success", "CANCELLED", "CANCELLED", "SUCCEEDED")


@told("deferred", "in_worker")
def clear_of_a_task_marked_failed_while_it_waited_trains_again(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.mark("failed")
    yield run.jobs("CANCELLED")
    yield run.has_ended("failed")
    run.clear()
    yield run.jobs("CANCELLED", "RUNNING")
    run.succeed()
    yield run.ends("success", "CANCELLED", "SUCCEEDED")


@told("deferred")
def clear_right_after_a_waiting_task_was_marked_failed_trains_again(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.mark("failed")
    # The old job is being cancelled at this moment, or not yet.
    yield run.has_ended("failed")
    run.clear()
    yield run.jobs("CANCELLED", "RUNNING")
    run.succeed()
    yield run.ends("success", "CANCELLED", "SUCCEEDED")


@told("later")
def clear_of_a_task_that_waits_for_its_retry_trains_again(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.fail()
    yield run.task("up_for_retry")
    run.clear()
    yield run.jobs("FAILED", "RUNNING")
    run.succeed()
    yield run.ends("success", "FAILED", "SUCCEEDED")


@told("breaks_later")
def clear_of_a_task_that_waits_for_its_retry_ends_its_job_first(play: Play, dag: str) -> Story:
    run = _begin(play, dag)
    yield run.jobs_and_task(("RUNNING",), "up_for_retry")
    run.clear()
    yield run.jobs("CANCELLED", "RUNNING")
    run.succeed()
    yield run.ends("success", "CANCELLED", "SUCCEEDED")


@told("waits_at_first")
def clear_of_a_task_that_never_ran_makes_one_job(play: Play, dag: str) -> Story:
    pool = "told_first"
    play.stage.airflow.api.set_pool(pool, 0)
    run = _begin(play, dag)
    yield run.task("scheduled")
    run.clear()
    play.stage.airflow.api.set_pool(pool, 1)
    yield run.jobs("RUNNING")
    run.succeed()
    yield run.ends("success", "SUCCEEDED")


@told("waits_at_retry")
def clear_of_a_retry_that_never_ran_trains_again(play: Play, dag: str) -> Story:
    pool, api = "told_retry", play.stage.airflow.api
    api.set_pool(pool, 1)
    run = _begin(play, dag)
    yield run.jobs_and_task(("RUNNING",), "up_for_retry")
    api.set_pool(pool, 0)
    yield run.jobs_and_task(("RUNNING",), "scheduled")
    run.clear()
    yield run.jobs_and_task(("RUNNING",), "scheduled")
    api.set_pool(pool, 1)
    yield run.jobs("CANCELLED", "RUNNING")
    run.succeed()
    yield run.ends("success", "CANCELLED", "SUCCEEDED")


@told("waits_at_clear")
def several_clears_before_the_next_try_make_one_attempt(play: Play, dag: str) -> Story:
    pool, api = "told_clear", play.stage.airflow.api
    api.set_pool(pool, 1)
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    api.set_pool(pool, 0)
    run.clear()
    run.clear()
    yield run.task("scheduled")
    run.clear()
    yield run.task("scheduled")
    api.set_pool(pool, 1)
    yield run.jobs("CANCELLED", "RUNNING")
    run.succeed()
    yield run.ends("success", "CANCELLED", "SUCCEEDED")


@told("queued")
def clears_of_queued_tasks_make_no_job_without_need(play: Play, _: str) -> Story:
    """All of Airflow's workers stand still, so that tasks stay queued.  Played alone.

    A first try, a task that would judge its job, and a retry.
    """
    resumed = play.begin("told_deferred")
    yield resumed.jobs("RUNNING")
    retried = play.begin("told_breaks_soon")
    yield retried.jobs_and_task(("RUNNING",), "up_for_retry")
    scheduler = psutil.Process(play.stage.airflow.components["scheduler"].pid)
    workers = scheduler.children(recursive=True)
    for worker in workers:
        worker.suspend()
    try:
        first = play.begin("told_deferred")
        resumed.succeed()
        yield lambda: all(run.task("queued")() for run in (first, resumed, retried))
        before = {run.run_id: run.instance()["id"] for run in play.runs}
        for run in play.runs:
            run.clear()
        yield lambda: all(
            run.task("queued")() and run.instance()["id"] != before[run.run_id] for run in play.runs
        )
    finally:
        for worker in workers:
            worker.resume()
    yield first.jobs("RUNNING")
    yield resumed.jobs("SUCCEEDED", "RUNNING")
    yield retried.jobs("CANCELLED", "RUNNING")
    for run in play.runs:
        run.succeed()
    yield first.ends("success", "SUCCEEDED")
    yield resumed.ends("success", "SUCCEEDED", "SUCCEEDED")
    yield retried.ends("success", "CANCELLED", "SUCCEEDED")


# Backfills ----------------------------------------------------------------------------------------


@told("daily")
def reprocessing_a_backfill_trains_again_what_was_asked(play: Play, dag: str) -> Story:
    api, dag_id = play.stage.airflow.api, f"told_{dag}"
    api.unpause(dag_id)
    days = [Run(play.stage, dag_id, f"backfill__2020-03-0{day}T00:00:00+00:00") for day in (1, 2)]
    play.runs.extend(days)
    good, bad = days

    def backfill(reprocess: str) -> int:
        conf = {"folder": str(play.stage.folder)}
        return api.backfill(dag_id, "2020-03-01", "2020-03-02", reprocess=reprocess, conf=conf)

    number = backfill("none")
    yield lambda: all(day.jobs("RUNNING")() for day in days)
    good.succeed()
    bad.fail()
    yield lambda: api.backfill_is_over(number)
    number = backfill("failed")
    yield bad.jobs("FAILED", "RUNNING")
    bad.succeed()
    yield lambda: api.backfill_is_over(number)
    number = backfill("completed")
    yield (
        lambda: good.jobs("SUCCEEDED", "RUNNING")() and bad.jobs("FAILED", "SUCCEEDED", "RUNNING")()
    )
    good.succeed()
    bad.succeed()
    yield lambda: api.backfill_is_over(number)
    yield good.ends("success", "SUCCEEDED", "SUCCEEDED")
    yield bad.ends("success", "FAILED", "SUCCEEDED", "SUCCEEDED")


# Retries edited in the DAG file -------------------------------------------------------------------

EDITED = """
from datetime import datetime, timedelta, timezone
from airflow.sdk import DAG, Param
from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator

with DAG(
    "{dag_id}",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    params={{"folder": Param("/nonexistent", type="string")}},
):
    AIPTrainingJobOperator(
        task_id="train",
        job_id="{dag_id}",
        package_path={package!r},
        module_name="trainer.task",
        scale_tier="basic",
        args=["--end", "{{{{ params.folder }}}}/{{job_id}}"],
        poll_interval=1,
        deferrable=True,
        retries={retries},
        retry_delay=timedelta(seconds=1),
    )
"""


@told("edited_from_0_to_2", "edited_from_2_to_1")
def clear_after_the_retries_were_edited_trains_again(play: Play, dag: str) -> Story:
    """From 2 to 1 the number of tries that Airflow allows, 2, stays what it was."""
    dag_id = f"told_{dag}"
    before, after = (int(text) for text in dag.removeprefix("edited_from_").split("_to_"))
    _write_dag(play, dag_id, before)
    yield lambda: _retries(play, dag_id) == before
    run = _begin(play, dag)
    yield run.jobs("RUNNING")
    run.succeed()
    yield run.has_ended("success")
    tried = run.instance()["try_number"]
    _write_dag(play, dag_id, after)
    yield lambda: _retries(play, dag_id) == after
    run.clear()
    yield run.jobs("SUCCEEDED", "RUNNING")
    assert run.instance()["max_tries"] == tried + after
    run.succeed()
    yield run.ends("success", "SUCCEEDED", "SUCCEEDED")


def _write_dag(play: Play, dag_id: str, retries: int) -> None:
    package = str(Path(__file__).parent / "dags" / "told" / "trainer")
    file = play.stage.edited / f"{dag_id}.py"
    half = file.with_suffix(".half")
    half.write_text(EDITED.format(dag_id=dag_id, package=package, retries=retries))
    half.replace(file)


def _retries(play: Play, dag_id: str) -> int | None:
    """Return the retries that Airflow has read from the DAG file; ``None`` before it has."""
    try:
        return int(play.stage.airflow.api.get(f"/dags/{dag_id}/tasks/train")["retries"])
    except AirflowApiError:
        return None


def _runner(run: Run) -> psutil.Process:
    """Return the process that executes the task."""
    return psutil.Process(int(run.instance()["pid"]))


# Playing them -------------------------------------------------------------------------------------


def _name(story: Callable[..., Story], dag: str) -> str:
    return f"{story.__name__}-{dag}"


@pytest.fixture(scope="module")
def plays(
    request: pytest.FixtureRequest,
    airflow: AirflowCluster,
    service: EmbeddedService,
    edited_dags: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[int, Play]]:
    """The stories that were asked for, all played."""
    folder = tmp_path_factory.mktemp("told")
    stage = Stage(airflow, service, "told_", folder, edited_dags)
    wanted = [
        item.callspec.params["number"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    ]
    together, alone = dict[int, Play](), dict[int, Play]()
    for number in wanted:
        story, dag = STORIES[number]
        play = Play(
            _name(story, dag),
            stage,
            tell=lambda play, story=story, dag=dag: story(play, dag),
            takes_worker="in_worker" in dag,
        )
        (alone if dag == "queued" else together)[number] = play
    airflow.api.wait_for_dags(["told_deferred", "told_daily"])
    perform(stage, list(together.values()))
    perform(stage, list(alone.values()), at_once=1)
    yield {**together, **alone}
    # Trainers that are left end without it.
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(
            number,
            id=_name(story, dag),
            marks=() if _name(story, dag) in EVERY_DAY else pytest.mark.long,
        )
        for number, (story, dag) in enumerate(STORIES)
    ],
)
def test_attempts_are_exactly_those_that_were_wanted(plays: dict[int, Play], number: int) -> None:
    print(f"{plays[number].name} took {plays[number].seconds:.0f} s")
    plays[number].check()
