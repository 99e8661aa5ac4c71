"""What happens to a deferred task before a triggerer has looked at its trigger.

All of it in one outage of the triggerer: each event has a run of its own.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

import airflow_rows
import pytest
from cluster import AirflowCluster
from processes import stop, wait_for
from work import Work

pytestmark = pytest.mark.long

#: What a trigger can't do without; the rest has defaults.
ALWAYS_THERE = ("job_id", "project_id", "service", "api_endpoint", "gcp_conn_id")


def clear(work: Work) -> None:
    work.airflow.api.clear(work.dag_id, work.run_id, ["train"])


def mark_failed(work: Work) -> None:
    work.airflow.api.set_state(work.dag_id, work.run_id, "train", "failed")


def lose_trigger_class(work: Work) -> None:
    """Deploy, on the triggerer, a package without the trigger's module."""
    airflow_rows.change_trigger(work, classpath="airflow_aiptraining.triggers.gone.Trigger")


def age_trigger(work: Work) -> None:
    """Make the deferral one of the first version."""
    kwargs = airflow_rows.trigger_kwargs(work)
    assert set(ALWAYS_THERE) < set(kwargs)
    old = {name: kwargs[name] for name in ALWAYS_THERE}
    airflow_rows.change_trigger(work, kwargs=json.dumps(old))
    assert set(airflow_rows.next_kwargs(work)) == {"job_id"}
    airflow_rows.change_task(work, next_kwargs="{}")


def rejuvenate_trigger(work: Work) -> None:
    """Make the deferral one of a later version, which was rolled back."""
    kwargs = airflow_rows.trigger_kwargs(work)
    airflow_rows.change_trigger(work, kwargs=json.dumps({**kwargs, "tail_logs": True}))


def age_ledger(work: Work) -> None:
    """Make the ledger one of the first version, and have a next try read it."""
    ledger = work.ledger()
    first = ("version", "attempt", "job_id", "service", "api_endpoint", "project_id", "stamp")
    assert set(first) < set(ledger)
    work.write_ledger({**{name: ledger[name] for name in first}, "deadline": None})
    lose_trigger_class(work)


def rejuvenate_ledger(work: Work) -> None:
    """Make the ledger one of a later version, and have a next try read it."""
    work.write_ledger({**work.ledger(), "version": 9, "zone": "a", "stamps": [1]})
    lose_trigger_class(work)


def call_again(work: Work) -> None:
    """Do what Airflow's resume race does: the try is over, and nobody knows of its deferral."""
    now = datetime.now(UTC).replace(tzinfo=None).isoformat(" ")
    airflow_rows.change_task(
        work,
        state="up_for_retry",
        next_method=None,
        next_kwargs=None,
        trigger_id=None,
        end_date=now,
    )


EVENTS: Mapping[str, Callable[[Work], None]] = {
    function.__name__: function
    for function in (
        clear,
        mark_failed,
        lose_trigger_class,
        age_trigger,
        rejuvenate_trigger,
        age_ledger,
        rejuvenate_ledger,
        call_again,
    )
}


@pytest.fixture(scope="module")
def works(airflow: AirflowCluster, submit: Callable[..., Work]) -> Iterator[dict[str, Work]]:
    """A deferred task for each event, which came while no triggerer was there."""
    triggerer = airflow.components["triggerer"]
    triggerer.send(signal.SIGKILL)
    wait_for(lambda: not triggerer.is_running(), timeout=30, what="the triggerer's end")
    try:
        works = {
            name: submit("hangs_deferred", 600 if name == "mark_failed" else 120, is_waiting=False)
            for name in EVENTS
        }
        for work in works.values():
            work.wait_for_states("RUNNING", timeout=200)
            work.wait_for_task("deferred")
        for name, work in works.items():
            EVENTS[name](work)
    finally:
        triggerer.start()
    airflow.wait_until_healthy()
    yield works
    # A triggerer never starts a trigger with the id of one that it couldn't load, and SQLite gives
    # ids away again.
    stop([triggerer])
    triggerer.start()
    airflow.wait_until_healthy()


def succeeds_with_one_job(work: Work, *, tries: int) -> None:
    """Assert that the task ends well, with the job it had from the start."""
    assert work.wait_for_task("success", "failed", timeout=280) == "success", work.told()
    assert work.states() == ["SUCCEEDED"]
    assert work.task()["try_number"] == tries


def test_job_of_a_task_that_was_marked_failed_ends_by_the_next_triggerer_or_the_reaper(
    works: Mapping[str, Work],
) -> None:
    """The next triggerer loads the trigger before it cleans up, mostly, and then calls on_kill."""
    work = works["mark_failed"]
    assert work.task()["state"] == "failed"

    assert set(work.reap()) <= set(work.jobs())
    work.wait_for_states("CANCELLED")


def test_cleared_task_trains_again_after_its_old_job_has_ended(works: Mapping[str, Work]) -> None:
    work = works["clear"]

    work.wait_for_states("CANCELLED", "RUNNING", timeout=150)
    first, second = (
        next(job for job in work.service.jobs() if job["jobId"] == job_id) for job_id in work.jobs()
    )
    assert first["endTime"] <= second["createTime"]


def test_trigger_that_cant_be_loaded_is_tried_again_with_the_same_job(
    works: Mapping[str, Work],
) -> None:
    succeeds_with_one_job(works["lose_trigger_class"], tries=2)


def test_trigger_of_the_first_version_goes_on(works: Mapping[str, Work]) -> None:
    succeeds_with_one_job(works["age_trigger"], tries=1)


def test_trigger_of_a_later_version_is_tried_again_with_the_same_job(
    works: Mapping[str, Work],
) -> None:
    succeeds_with_one_job(works["rejuvenate_trigger"], tries=2)


@pytest.mark.parametrize("event", ["age_ledger", "rejuvenate_ledger"])
def test_ledger_of_another_version_leads_to_the_same_job(
    works: Mapping[str, Work], event: str
) -> None:
    succeeds_with_one_job(works[event], tries=2)


def test_execute_that_is_called_again_goes_on_with_the_job(works: Mapping[str, Work]) -> None:
    succeeds_with_one_job(works["call_again"], tries=2)


def test_cleared_task_succeeds_with_its_second_job(works: Mapping[str, Work]) -> None:
    work = works["clear"]

    assert work.wait_for_task("success", "failed", timeout=280) == "success", work.told()
    assert work.states() == ["CANCELLED", "SUCCEEDED"]
