"""Many triggers, one watch: what is asked of the service, and what each trigger is told.

Against the embedded service, and against a stand-in for faults that no real service makes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from embedded import Service
from ml_stand_in import Asked, Reply, StandIn, error
from training_client import TrainingClient
from watching import (
    ended_as,
    event,
    events_of,
    start,
    stop,
    trigger_maker,
    until,
    watches,
)

from airflow_aiptraining.services.ml_v1 import MLv1Service
from airflow_aiptraining.triggers import budget, service_calls, waiter
from airflow_aiptraining.triggers.service_calls import ServiceCalls

pytestmark = pytest.mark.usefixtures("quick")

HTML = Reply(502, b"<!doctype html><h1>Bad gateway</h1>", (("Content-Type", "text/html"),))


# --- what is asked -------------------------------------------------------------------------------


async def test_burst_of_triggers_is_served_by_lists(
    stand_in: StandIn, trigger: Callable[..., Any]
) -> None:
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(1_000)}
    triggers = [trigger(job_id, poll_interval=1.0) for job_id in stand_in.states]
    running = start(triggers)
    [watch] = await watches()
    await until(lambda: all(each.state for each in watch._rounds.waiters()))

    assert stand_in.count("get") == 0 and stand_in.count("list") == 10

    await ended_as(stand_in, triggers, running)
    assert stand_in.count("get") == 0
    assert stand_in.count("list") <= 10 + 3 * (10 + 11), "rounds of lists, then lists of the ended"


async def test_few_jobs_are_read_one_by_one(stand_in: StandIn, trigger: Callable[..., Any]) -> None:
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(50)}
    triggers = [trigger(f"j_{n}") for n in range(3)]
    running = start(triggers)
    await until(lambda: len(stand_in.asked) >= 9)

    await ended_as(stand_in, triggers, running)
    assert stand_in.count("list") == 0
    assert {asked.name for asked in stand_in.asked} == {"j_0", "j_1", "j_2"}


async def test_two_waiters_of_one_job_cost_one_look(
    stand_in: StandIn, trigger: Callable[..., Any]
) -> None:
    stand_in.states = {"j": "RUNNING"}
    triggers = [trigger("j", poll_interval=60.0) for _ in range(20)]
    running = start(triggers)
    [watch] = await watches()
    await until(lambda: all(each.state for each in watch._rounds.waiters()))

    assert len(stand_in.asked) == 1
    await stop(running)


async def test_project_full_of_others_jobs_is_not_listed_again(
    stand_in: StandIn, trigger: Callable[..., Any]
) -> None:
    stand_in.states = {f"ours_{n}": "RUNNING" for n in range(10)}
    triggers = [trigger(job_id) for job_id in stand_in.states]
    stand_in.states |= {f"theirs_{n}": "RUNNING" for n in range(3_000)}
    running = start(triggers)
    await until(lambda: stand_in.count("get") >= 30)

    assert stand_in.count("list") == 5
    await ended_as(stand_in, triggers, running)


async def test_jobs_whose_triggers_come_later_do_not_end_the_use_of_lists(
    stand_in: StandIn, trigger: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a triggerer that starts: it takes up the oldest first, and lists are newest first."""
    monkeypatch.setattr(budget, "first_look", lambda now, interval: now + interval / 10)
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(3_000)}
    triggers = [trigger(f"j_{n}", poll_interval=3.0 if n < 100 else 30.0) for n in range(3_000)]
    running = start(triggers[:1_700])
    # Ten pages find none of the hundred that are due, and a page of ended jobs doesn't either.
    await until(lambda: stand_in.count("list") >= 11)
    running += start(triggers[1_700:])
    [watch] = await watches()
    await until(lambda: all(each.state for each in watch._rounds.waiters()))

    assert stand_in.count("get") <= 1_500, "not each for itself"
    await stop(running)


@pytest.mark.parametrize("status", [403, 400, 501, 404])
async def test_where_lists_are_refused_jobs_are_read_one_by_one(
    stand_in: StandIn, trigger: Callable[..., Any], status: int
) -> None:
    refusal = error(status, "You may not list.")
    stand_in.fault = lambda asked: refusal if asked.verb == "list" else None
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(20)}
    triggers = [trigger(job_id) for job_id in stand_in.states]
    running = start(triggers)
    await until(lambda: stand_in.count("get") >= 60)

    await ended_as(stand_in, triggers, running)
    assert stand_in.count("list") == 1


async def test_list_by_end_time_is_given_up_where_it_is_refused(
    stand_in: StandIn, trigger: Callable[..., Any]
) -> None:
    stand_in.fault = lambda asked: (
        error(400, "filter: unknown field endTime") if "endTime" in asked.name else None
    )
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(300)}
    triggers = [trigger(job_id) for job_id in stand_in.states]
    running = start(triggers)
    await until(lambda: stand_in.count("list") >= 3)

    await ended_as(stand_in, triggers, running)
    assert sum("endTime" in asked.name for asked in stand_in.asked) == 1


async def test_budget_wins_over_poll_interval_and_the_log_says_so(
    stand_in: StandIn,
    trigger: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("AIRFLOW__AIPTRAINING__REQUEST_BUDGET", "240")
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(950)}
    triggers = [trigger(job_id, poll_interval=0.1) for job_id in stand_in.states]
    running = start(triggers)
    await until(lambda: len(stand_in.asked) > 38)
    times = [asked.at for asked in stand_in.asked]

    # Thirty go at once; 210 a minute are earned.
    assert times[38] - times[0] >= 8 * 60 / 210 * 0.9
    [line] = [r.getMessage() for r in caplog.records if "request_budget = 240" in r.getMessage()]
    assert "950 jobs of project 'p'" in line and "read every 2.9 s, not every 0.1 s" in line
    told = [r.getMessage() for r in caplog.records if "is looked at every 3 s" in r.getMessage()]
    assert len(told) == 950
    await stop(running)


async def test_short_interval_of_one_does_not_read_all_the_others(
    stand_in: StandIn, trigger: Callable[..., Any]
) -> None:
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(100)}
    triggers = [trigger(job_id, poll_interval=20.0) for job_id in stand_in.states]
    triggers[0].poll_interval = 0.03
    running = start(triggers)
    await until(lambda: stand_in.count("get") >= 40)

    assert stand_in.count("list") <= 1
    assert Counter(asked.name for asked in stand_in.asked if asked.verb == "get") == {
        "j_0": stand_in.count("get")
    }
    await stop(running)


# --- pages that change under the list -----------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_jobs_that_pages_lose_or_show_twice_end_only_with_their_own_end(
    stand_in: StandIn, trigger: Callable[..., Any], seed: int
) -> None:
    draw = random.Random(seed)

    def shuffled(asked: Asked) -> Reply | None:
        if asked.verb != "list" or "RUNNING" not in asked.name:
            return None
        active = [job_id for job_id, state in stand_in.states.items() if state == "RUNNING"]
        shown = [stand_in.job(draw.choice(active), "RUNNING") for _ in range(60)] if active else []
        more = {"nextPageToken": "x"} if draw.random() < 0.7 else {}
        return Reply(body={"jobs": shown} | more)

    stand_in.fault = shuffled
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(100)}
    triggers = [trigger(job_id) for job_id in stand_in.states]
    running = start(triggers)
    await until(lambda: stand_in.count("list") >= 10)
    for number in range(0, 100, 2):
        stand_in.states[f"j_{number}"] = "SUCCEEDED"
    await until(lambda: all(task.done() for task in running[::2]))

    assert not any(task.done() for task in running[1::2])
    stand_in.states = {f"j_{n}": "SUCCEEDED" for n in range(100)}
    assert await asyncio.gather(*running) == [
        [event(each, event="ended", state="SUCCEEDED")] for each in triggers
    ]


async def test_empty_list_ends_no_wait(stand_in: StandIn, trigger: Callable[..., Any]) -> None:
    stand_in.fault = lambda asked: Reply(body={}) if asked.verb == "list" else None
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(30)}
    triggers = [trigger(job_id) for job_id in stand_in.states]
    running = start(triggers)
    await until(lambda: stand_in.count("get") >= 90)

    assert not any(task.done() for task in running)
    assert stand_in.count("list") <= 2, "a list that shows nothing isn't asked for each time"
    await ended_as(stand_in, triggers, running)


async def test_page_token_that_went_stale_ends_no_wait(
    stand_in: StandIn, trigger: Callable[..., Any]
) -> None:
    stand_in.fault = lambda asked: error(400, "page_token") if asked.token else None
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(150)}
    triggers = [trigger(job_id) for job_id in stand_in.states]
    running = start(triggers)
    await until(lambda: stand_in.count("get") >= 100)

    await ended_as(stand_in, triggers, running)
    assert stand_in.count("list") > 2


# --- faults --------------------------------------------------------------------------------------

FAULTS = {
    "429": error(429, "quota"),
    "500": error(500, "internal"),
    "503": error(503, "unavailable"),
    "HTML": HTML,
    "HTML that says 200": Reply(200, HTML.body, HTML.headers),
    "truncated": Reply(body={"jobs": [], "jobId": "j_0", "state": "FAILED"}, fault="truncate"),
    "broken JSON": Reply(body=b'{"jobs": [{"jobId": "j_0", "sta'),
    "200 with an error in it": Reply(body={"error": {"code": 500, "message": "oops"}}),
    "200 with a list": Reply(body=[]),
    "wrong types": Reply(body={"jobs": {"j_0": "FAILED"}, "state": 7}),
    "reset": Reply(fault="reset"),
}


@pytest.mark.parametrize("jobs", [1, 12], ids=["one by one", "by list"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_no_fault_ends_a_wait_and_no_end_is_missed(
    stand_in: StandIn,
    trigger: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    fault: Reply,
    jobs: int,
) -> None:
    """The service fails for a while, then every other time, then not any more."""
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(jobs)}
    stand_in.fault = lambda asked: (
        fault if len(stand_in.asked) < 6 or (len(stand_in.asked) < 20 and random.random() < 0.5)
        else None
    )  # fmt: skip
    triggers = [trigger(job_id) for job_id in stand_in.states]
    running = start(triggers)
    await until(lambda: len(stand_in.asked) >= (6 if fault.headers else 24))

    assert not any(task.done() for task in running)
    await ended_as(stand_in, triggers, running)
    away = [r.getMessage() for r in caplog.records if "has not answered since" in r.getMessage()]
    assert sorted({line.split()[1] for line in away}) == sorted(
        f"{name}:" for name in stand_in.states
    )
    assert len(away) == jobs, "one line for each, however often it failed"


async def test_retry_after_is_kept(stand_in: StandIn, trigger: Callable[..., Any]) -> None:
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(12)}
    quota = error(429, "quota", Retry_After="1")
    stand_in.fault = lambda asked: quota if len(stand_in.asked) == 3 else None
    triggers = [trigger(job_id) for job_id in stand_in.states]
    running = start(triggers)
    await until(lambda: len(stand_in.asked) >= 5)

    assert stand_in.asked[3].at - stand_in.asked[2].at >= 0.95
    await ended_as(stand_in, triggers, running)


async def test_broken_list_gives_way_to_reading_each(
    stand_in: StandIn, trigger: Callable[..., Any]
) -> None:
    stand_in.fault = lambda asked: error(503, "too many jobs") if asked.verb == "list" else None
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(12)}
    triggers = [trigger(job_id) for job_id in stand_in.states]
    running = start(triggers)
    await until(lambda: stand_in.count("get") >= 36)

    lists = stand_in.count("list")
    await ended_as(stand_in, triggers, running)
    assert stand_in.count("list") == lists <= 9


async def test_answer_that_drips_in_for_ever_is_given_up(
    stand_in: StandIn, trigger: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_calls, "CALL_LIMIT", 0.4)
    stand_in.states = {"j_0": "RUNNING"}
    slow = Reply(body={"jobId": "j_0", "state": "SUCCEEDED"} | {"x": "x" * 200}, fault="drip")
    stand_in.fault = lambda asked: slow if len(stand_in.asked) <= 2 else None
    triggers = [trigger("j_0")]
    running = start(triggers)
    await until(lambda: len(stand_in.asked) >= 5)

    assert not running[0].done()
    await ended_as(stand_in, triggers, running)


async def test_calls_that_hang_are_not_piled_up(
    stand_in: StandIn, trigger: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_calls, "CALL_LIMIT", 0.05)
    stand_in.states = {"j_0": "RUNNING"}
    slow = Reply(body={"x": "x" * 3_000}, fault="drip")
    stand_in.fault = lambda asked: slow
    running = start([trigger("j_0")])
    [watch] = await watches()
    await until(lambda: watch._rounds._failures > service_calls.MOST_STUCK + 3)

    assert len(stand_in.asked) == service_calls.MOST_STUCK
    await stop(running)


async def test_deadline_holds_while_the_service_is_away(
    stand_in: StandIn, trigger: Callable[..., Any]
) -> None:
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(12)}
    triggers = [trigger(job_id, deadline=time.time() + 3.0) for job_id in stand_in.states]
    running = start(triggers)
    await until(lambda: len(stand_in.asked) >= 3)
    stand_in.fault = lambda asked: error(503, "away", Retry_After="60")

    assert await asyncio.wait_for(asyncio.gather(*running), 50) == [
        [event(each, event="timeout", state="RUNNING")] for each in triggers
    ]


async def test_closed_service_is_an_error_at_once(
    stand_in: StandIn, trigger: Callable[..., Any]
) -> None:
    closed = error(400, "Cloud AI Platform has been deprecated. Please use Vertex AI instead.")
    stand_in.fault = lambda asked: closed
    triggers = [trigger(f"j_{n}") for n in range(12)]

    for [told], each in zip(await asyncio.gather(*map(events_of, triggers)), triggers, strict=True):
        message = told.pop("message")
        assert told == event(each, event="error", state="")
        assert "Google has closed AI Platform Training" in message


# --- jobs that can't be read ---------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 12], ids=["one by one", "by list"])
async def test_vanished_job_is_an_error_after_several_looks(
    stand_in: StandIn, trigger: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    monkeypatch.setattr(waiter, "VANISHED_LIMIT", 0.5)
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(jobs)}
    triggers = [trigger(job_id) for job_id in stand_in.states]
    running = start(triggers)
    [watch] = await watches()
    await until(lambda: all(each.state for each in watch._rounds.waiters()))
    del stand_in.states["j_0"]
    gone = time.monotonic()

    [told] = await running[0]

    assert time.monotonic() - gone >= 0.5
    message = told.pop("message")
    assert told == event(triggers[0], event="error", state="RUNNING")
    assert "404" in message and "It was RUNNING when it was last seen" in message
    assert sum(asked.name == "j_0" for asked in stand_in.asked) >= 3
    await ended_as(stand_in, triggers[1:], running[1:])


async def test_job_that_comes_into_view_late_is_waited_for(
    stand_in: StandIn, trigger: Callable[..., Any]
) -> None:
    triggers = [trigger("j_0")]
    running = start(triggers)
    await until(lambda: len(stand_in.asked) >= 3)
    stand_in.states["j_0"] = "RUNNING"
    await until(lambda: len(stand_in.asked) >= 6)

    await ended_as(stand_in, triggers, running)


@pytest.mark.parametrize("jobs", [1, 12], ids=["one by one", "by list"])
@pytest.mark.parametrize("status", [401, 403])
async def test_rotated_credentials_are_taken_up(
    stand_in: StandIn,
    trigger: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    jobs: int,
) -> None:
    monkeypatch.setattr(service_calls, "REMAKE_PAUSE", 0.0)
    made: list[MLv1Service] = []
    make = ServiceCalls._make_service
    monkeypatch.setattr(
        ServiceCalls, "_make_service", lambda calls: made.append(make(calls)) or made[-1]
    )
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(jobs)}
    triggers = [trigger(job_id) for job_id in stand_in.states]
    running = start(triggers)
    await until(lambda: len(stand_in.asked) >= 3)
    stand_in.fault = lambda asked: error(status, "expired") if len(made) < 2 else None
    asked = len(stand_in.asked)
    await until(lambda: len(stand_in.asked) >= asked + 4)

    assert len(made) == 2
    await ended_as(stand_in, triggers, running)


@pytest.mark.parametrize("jobs", [1, 300], ids=["one by one", "by list"])
async def test_lasting_refusal_is_an_error_after_several_looks(
    stand_in: StandIn, trigger: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    monkeypatch.setattr(waiter, "REFUSED_LIMIT", 0.5)
    stand_in.fault = lambda asked: error(403, "ml.jobs.get denied")
    triggers = [trigger(f"j_{n}", poll_interval=0.2) for n in range(jobs)]

    for [told], each in zip(await asyncio.gather(*map(events_of, triggers)), triggers, strict=True):
        message = told.pop("message")
        assert told == event(each, event="error", state="")
        assert "HTTP 403" in message and "Grant roles/ml.developer" in message
        assert "was not allowed" in message
    assert len(stand_in.asked) < 100, "not once for each job"


async def test_connection_that_is_not_there_is_an_error_that_names_it(
    trigger: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiter, "REFUSED_LIMIT", 0.5)
    waiting = trigger("j_0", gcp_conn_id="nobody_made_this")

    [told] = await events_of(waiting)

    assert told["event"] == "error" and "nobody_made_this" in told["message"]


# --- the embedded service ------------------------------------------------------------------------


async def test_queue_of_the_embedded_service_is_watched_by_list(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = TrainingClient(service)
    hang = "import time; time.sleep(600)"
    job_ids = await asyncio.to_thread(lambda: [client.submit(hang) for _ in range(110)])
    make = trigger_maker(service.url, "local", monkeypatch)
    calls: Counter[str] = Counter()
    for verb in ("get_job", "list_page"):
        _count(monkeypatch, verb, calls)
    triggers = [make(job_id, poll_interval=1.0) for job_id in job_ids]
    running = start(triggers)
    [watch] = await watches()
    await until(lambda: all(each.state for each in watch._rounds.waiters()))
    assert calls["get_job"] == 0

    api = make(job_ids[0])
    for job_id in reversed(job_ids):
        await watch.cancel_job(job_id)

    assert await asyncio.wait_for(asyncio.gather(*running), 60) == [
        [event(each, event="ended", state="CANCELLED")] for each in triggers
    ]
    assert calls["get_job"] <= 2 * 10 and calls["list_page"] < 60, calls
    assert api.project_id == "local"


def _count(monkeypatch: pytest.MonkeyPatch, verb: str, calls: Counter[str]) -> None:
    real = getattr(MLv1Service, verb)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[verb] += 1
        return real(*args, **kwargs)

    monkeypatch.setattr(MLv1Service, verb, counted)
