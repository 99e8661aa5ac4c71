"""The life of a watch: its budget, cancellation at any moment, event loops, clocks, own faults."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ml_stand_in import Asked, Reply, StandIn, error
from watching import (
    ended_as,
    event,
    events_of,
    finish,
    set_connection,
    start,
    stop,
    until,
    watches,
)

from airflow_aiptraining.triggers import (
    budget,
    rounds,
    service_calls,
    training_job,
    waiter,
    watch,
)
from airflow_aiptraining.triggers.rounds import Rounds
from airflow_aiptraining.triggers.service_calls import ServiceCalls
from airflow_aiptraining.triggers.waiter import Waiter
from airflow_aiptraining.triggers.watch import JobWatch

pytestmark = pytest.mark.usefixtures("quick")

Make = Callable[..., Any]


# --- how often it asks ---------------------------------------------------------------------------


async def test_places_of_a_process_share_its_budget_evenly(
    stand_in: StandIn, trigger: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One place would always have more to ask than the other."""
    monkeypatch.setenv("AIRFLOW__AIPTRAINING__REQUEST_BUDGET", "240")
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(3)}
    with StandIn({f"j_{n}": "RUNNING" for n in range(950)}) as other:
        set_connection("aiptraining_other", other.url, "q", monkeypatch)
        place = {
            "gcp_conn_id": "aiptraining_other",
            "api_endpoint": other.url,
            "project_id": "q",
        }

        def asked() -> list[Asked]:
            return sorted([*stand_in.asked, *other.asked], key=lambda each: each.at)

        running = start([trigger(job_id) for job_id in stand_in.states])
        running += start([trigger(job_id, **place) for job_id in other.states])
        await until(lambda: sum(each.verb == "list" for each in asked()[30:]) >= 6)
        await stop(running)
        times = [each.at for each in asked()]
        verbs = [each.verb for each in asked()[30:]]

    # Thirty go at once; 210 a minute are earned; four a place may be late.
    assert times[-1] - times[0] >= (len(times) - 38) * 60 / 210
    singles = verbs[verbs.index("list") :].count("get")
    assert 3 <= singles <= 12, "three calls at a time are no larger share than one"


@pytest.mark.parametrize("interval", [0.0, -5.0, 1e-9, math.nan])
async def test_no_interval_is_too_short_for_the_budget(
    stand_in: StandIn, trigger: Make, monkeypatch: pytest.MonkeyPatch, interval: float
) -> None:
    monkeypatch.setenv("AIRFLOW__AIPTRAINING__REQUEST_BUDGET", "8")
    stand_in.states = {"j_0": "RUNNING"}
    running = start([trigger("j_0", poll_interval=interval)])
    await until(lambda: stand_in.asked)
    await asyncio.sleep(0.3)

    assert len(stand_in.asked) <= 2
    await stop(running)


@pytest.mark.parametrize("interval", [1e12, math.inf])
async def test_deadline_holds_over_a_long_interval(
    stand_in: StandIn, trigger: Make, interval: float
) -> None:
    stand_in.states = {"j_0": "RUNNING"}
    waiting = trigger("j_0", poll_interval=interval, deadline=time.time() + 0.5)

    assert await events_of(waiting) == [event(waiting, event="timeout", state="RUNNING")]
    assert len(stand_in.asked) == 1


async def test_rounds_of_several_processes_drift_apart(
    stand_in: StandIn, trigger: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws: list[float] = []
    monkeypatch.setattr(
        budget, "next_look", lambda now, interval, jitter: draws.append(jitter) or now + interval
    )
    stand_in.states = {"j_0": "RUNNING"}
    running = start([trigger("j_0")])
    await until(lambda: len(draws) >= 8)

    assert len(set(draws)) == len(draws) and all(0 <= each <= 1 for each in draws)
    await stop(running)


async def test_pauses_count_the_failures_in_a_row(
    stand_in: StandIn, trigger: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(rounds, "backoff", lambda _, failures: counted.append(failures) or 0.01)
    stand_in.states = {"j_0": "RUNNING"}
    stand_in.fault = lambda asked: error(503, "away") if len(stand_in.asked) not in (4, 5) else None
    running = start([trigger("j_0")])
    await until(lambda: len(counted) >= 6)

    assert counted[:6] == [1, 2, 3, 1, 2, 3]
    await stop(running)


async def test_those_who_join_while_the_service_is_away_do_not_wake_it(
    stand_in: StandIn, trigger: Make
) -> None:
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(50)}
    stand_in.fault = lambda asked: error(503, "away", Retry_After="60")
    running = start([trigger("j_0")])
    await until(lambda: stand_in.asked)
    running += start([trigger(job_id) for job_id in stand_in.states])
    await asyncio.sleep(0.3)

    assert len(stand_in.asked) == 1
    await stop(running)


# --- deadlines and clocks ------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 12], ids=["one by one", "by list"])
@pytest.mark.parametrize(("fault", "state"), [(None, "RUNNING"), (error(503, "away"), "")])
async def test_deadline_that_has_passed_is_told_after_one_look(
    stand_in: StandIn, trigger: Make, jobs: int, fault: Reply | None, state: str
) -> None:
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(jobs)}
    stand_in.fault = lambda asked: fault
    deadline = time.time() - 3_600
    triggers = [
        trigger(job_id, poll_interval=60.0, deadline=deadline) for job_id in stand_in.states
    ]

    assert await asyncio.gather(*map(events_of, triggers)) == [
        [event(each, event="timeout", state=state)] for each in triggers
    ]
    assert len(stand_in.asked) <= (3 if fault else 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A wall clock that may be set; the monotonic one stands still while a machine sleeps."""
    clock = SimpleNamespace(ahead=0.0, monotonic=time.monotonic)
    clock.time = lambda: time.time() + clock.ahead
    for module in (watch, rounds, training_job):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(watch, "LONGEST_NAP", 0.05)
    return clock


async def test_deadline_holds_over_a_sleep_of_the_machine(
    stand_in: StandIn, trigger: Make, clock: SimpleNamespace
) -> None:
    stand_in.states = {"j_0": "RUNNING"}
    waiting = trigger("j_0", poll_interval=7_200.0, deadline=clock.time() + 3_600)
    running = start([waiting])
    [shared] = await watches()
    await until(lambda: all(each.state for each in shared._rounds.waiters()))
    clock.ahead = 8 * 3_600.0

    assert await asyncio.wait_for(running[0], 60) == [
        event(waiting, event="timeout", state="RUNNING")
    ]
    assert len(stand_in.asked) == 2


async def test_clock_that_is_set_back_stops_no_look(
    stand_in: StandIn, trigger: Make, clock: SimpleNamespace
) -> None:
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(12)}
    triggers = [trigger(job_id, deadline=clock.time() + 3_600) for job_id in stand_in.states]
    running = start(triggers)
    await until(lambda: stand_in.asked)
    clock.ahead = -8 * 3_600.0

    await ended_as(stand_in, triggers, running)


@pytest.mark.parametrize(
    "end", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59-01:00", "yesterday", "", 7, None]
)
async def test_time_of_an_end_that_makes_no_sense_hides_no_end(
    stand_in: StandIn, trigger: Make, end: object
) -> None:
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(30)}

    def ended(asked: Asked) -> Reply | None:
        if asked.verb != "list" or "RUNNING" in asked.name:
            return None
        jobs = [stand_in.job(job_id, state) for job_id, state in stand_in.states.items()]
        return Reply(body={"jobs": [job | {"endTime": end} for job in jobs if "endTime" in job]})

    stand_in.fault = ended
    triggers = [trigger(job_id) for job_id in stand_in.states]
    running = start(triggers)
    await until(lambda: stand_in.count("list") >= 2)

    await ended_as(stand_in, triggers, running)
    assert stand_in.count("get") <= 10, "those of a round at whose start few were missing"


# --- those who leave -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_triggers_that_are_cancelled_at_any_moment_disturb_no_other(
    stand_in: StandIn, trigger: Make, seed: int
) -> None:
    draw = random.Random(seed)
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(40)}
    triggers = [trigger(job_id) for job_id in [*stand_in.states] * 2]
    draw.shuffle(triggers)
    running = []
    for each in triggers:
        running += start([each])
        await asyncio.sleep(draw.choice([0, 0, 0.003]))
    cancelled = set(draw.sample(range(80), 50))
    for number in cancelled:
        running[number].cancel()
        await asyncio.sleep(draw.choice([0, 0, 0.01]))

    kept = [number for number in range(80) if number not in cancelled]
    await ended_as(stand_in, [triggers[n] for n in kept], [running[n] for n in kept])
    assert all(running[number].cancelled() for number in cancelled)
    assert JobWatch._shared == {}
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


async def test_thousands_leave_at_once_in_the_middle_of_a_round(
    stand_in: StandIn, trigger: Make
) -> None:
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(2_000)}
    running = start([trigger(job_id) for job_id in stand_in.states])
    await until(lambda: stand_in.count("list") >= 3)
    await stop(running)

    assert all(task.cancelled() for task in running)
    assert JobWatch._shared == {}
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()} and not _threads())
    asked = len(stand_in.asked)
    await asyncio.sleep(0.2)
    assert len(stand_in.asked) == asked


@pytest.mark.parametrize("ticks", range(10))
async def test_watch_ends_with_its_last_waiter_however_soon_that_leaves(
    stand_in: StandIn, trigger: Make, ticks: int
) -> None:
    async with JobWatch.shared(trigger("j_0")._watch_key()) as shared:
        first = shared.join("j_0", 60.0)
        await asyncio.sleep(0.02)
        # Wakes the loop; the waits end at each of the moments that follow.
        second = shared.join("j_1", 0.5)
        for _ in range(ticks):
            await asyncio.sleep(0)
        shared.leave(second)
        shared.leave(first)
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, 10)


# --- nothing is left -----------------------------------------------------------------------------


def _threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("aiptraining-watch")]


def _wait_for_threads() -> None:
    deadline = time.monotonic() + 60
    while _threads():
        assert time.monotonic() < deadline, _threads()
        time.sleep(0.01)


@pytest.mark.parametrize("jobs", [1, 12])
def test_one_event_taken_and_the_generator_dropped_leaves_nothing(
    stand_in: StandIn, trigger: Make, jobs: int
) -> None:
    """As ``airflow dags test`` does, each time on an event loop of its own."""
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(jobs)}

    async def first(job_id: str) -> dict[str, Any]:
        told = await anext(trigger(job_id).run(), None)
        assert told is not None
        return dict(told.payload)

    async def all_of_them() -> list[dict[str, Any]]:
        threading.Timer(0.5, finish, [stand_in]).start()
        told = await asyncio.gather(*map(first, list(stand_in.states)))
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert all(task.cancelling() for task in others)
        return told

    for _ in range(2):
        assert [told["event"] for told in asyncio.run(all_of_them())] == ["ended"] * jobs
        assert JobWatch._shared == {}
    _wait_for_threads()


async def test_watch_stops_with_its_last_waiter_and_starts_again(
    stand_in: StandIn, trigger: Make
) -> None:
    for _ in range(2):
        stand_in.states = {f"j_{n}": "RUNNING" for n in range(12)}
        running = start([trigger(job_id) for job_id in stand_in.states])
        asked = len(stand_in.asked)
        await until(lambda asked=asked: len(stand_in.asked) >= asked + 3)
        await stop(running)

        assert JobWatch._shared == {}
        await until(lambda: not _threads())
        asked = len(stand_in.asked)
        await asyncio.sleep(0.3)
        assert len(stand_in.asked) == asked
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_answer_that_comes_when_the_event_loop_is_closed_is_dropped_silently(
    stand_in: StandIn, trigger: Make, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in.states = {"j_0": "RUNNING"}
    gate = threading.Event()

    def hold(asked: Asked) -> None:
        gate.wait(60)

    stand_in.fault = hold

    async def interrupted() -> None:
        start([trigger("j_0")])
        await until(lambda: stand_in.asked)

    asyncio.run(interrupted())
    assert JobWatch._shared == {}
    gate.set()
    _wait_for_threads()
    stand_in.states["j_0"] = "SUCCEEDED"
    assert [told["event"] for told in asyncio.run(events_of(trigger("j_0")))] == ["ended"]
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


_FORKS = """
import asyncio, os, sys
from airflow_aiptraining.triggers.training_job import AIPTrainingJobTrigger
from airflow_aiptraining.triggers.watch import JobWatch

def trigger():
    return AIPTrainingJobTrigger(
        job_id="j_0", project_id="p", service="ml_v1", api_endpoint=sys.argv[1],
        gcp_conn_id="aiptraining_watch", poll_interval=2.0,
    )

async def wait(*, forks):
    waiting = asyncio.ensure_future(anext(trigger().run()))
    if forks:
        # Between two looks: a process must not fork while its other threads hold locks.
        await asyncio.sleep(0)
        [watch] = JobWatch._shared.values()
        while not all(waiter.state for waiter in watch._rounds.waiters()):
            await asyncio.sleep(0.01)
        if not os.fork():
            try:
                asyncio.run(wait(forks=False))
            finally:
                os._exit(1)
    told = await waiting
    if forks:
        os.wait()
    os.write(1, b" told:" + told.payload["state"].encode())
    os._exit(0)

asyncio.run(wait(forks=True))
"""


def test_process_that_forks_while_it_waits_waits_in_both(stand_in: StandIn, trigger: Make) -> None:
    stand_in.states = {"j_0": "RUNNING"}
    trigger("j_0")
    forking = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _FORKS, stand_in.url],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent.parent.parent,
    )
    try:
        deadline = time.monotonic() + 120
        # Each asks from a connection of its own.
        while len({asked.peer for asked in stand_in.asked}) < 2:
            assert time.monotonic() < deadline and forking.poll() is None
            time.sleep(0.05)
        finish(stand_in)
        told, _ = forking.communicate(timeout=60)
    finally:
        forking.kill()
    assert told.count(b" told:" + stand_in.states["j_0"].encode()) == 2


# --- faults of our own ---------------------------------------------------------------------------


def _fault(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("a fault of our own")


@pytest.mark.parametrize("jobs", [1, 12], ids=["one by one", "by list"])
async def test_fault_while_states_are_told_ends_the_waits_in_the_end(
    stand_in: StandIn, trigger: Make, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    monkeypatch.setattr(waiter, "REFUSED_LIMIT", 0.3)
    monkeypatch.setattr(Waiter, "saw", _fault)
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(jobs)}
    triggers = [trigger(job_id) for job_id in stand_in.states]

    for [told] in await asyncio.wait_for(asyncio.gather(*map(events_of, triggers)), 60):
        assert told["event"] == "error"
        assert "a fault of our own" in told["message"] and "was not readable" in told["message"]


@pytest.mark.parametrize("place", [(JobWatch, "_nap"), (Rounds, "round")], ids=["nap", "round"])
async def test_fault_that_nobody_foresaw_ends_every_wait_at_once(
    stand_in: StandIn,
    trigger: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: tuple[type, str],
) -> None:
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(12)}
    triggers = [trigger(job_id) for job_id in stand_in.states]
    running = start(triggers)
    [shared] = await watches()
    await until(lambda: all(each.state for each in shared._rounds.waiters()))
    with monkeypatch.context() as patched:
        patched.setattr(*place, _fault)
        for [told] in await asyncio.wait_for(asyncio.gather(*running), 60):
            assert told["event"] == "error" and told["state"] == "RUNNING"
            assert "broke off" in told["message"] and "a fault of our own" in told["message"]
    [line] = [r for r in caplog.records if "broke off" in r.getMessage()]
    assert line.exc_info is not None, "with the traceback"

    # The next who come find a watch that works.
    await ended_as(stand_in, triggers, start(triggers))


async def test_watch_that_somebody_else_cancels_ends_every_wait(
    stand_in: StandIn, trigger: Make
) -> None:
    stand_in.states = {f"j_{n}": "RUNNING" for n in range(12)}
    running = start([trigger(job_id) for job_id in stand_in.states])
    [shared] = await watches()
    await until(lambda: shared._task is not None)
    assert shared._task is not None
    shared._task.cancel()

    for [told] in await asyncio.wait_for(asyncio.gather(*running), 60):
        assert told["event"] == "error" and "CancelledError" in told["message"]


async def test_credentials_that_cannot_be_made_anew_go_on_while_they_work(
    stand_in: StandIn,
    trigger: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Airflow's own database may be away when credentials have their half-hour."""
    stand_in.states = {"j_0": "RUNNING"}
    triggers = [trigger("j_0")]
    running = start(triggers)
    await until(lambda: stand_in.asked)
    monkeypatch.setattr(service_calls, "SERVICE_LIFETIME", 0.0)
    monkeypatch.setattr(ServiceCalls, "_make_service", _fault)
    asked = len(stand_in.asked)
    await until(lambda: len(stand_in.asked) > asked + 3)

    await ended_as(stand_in, triggers, running)
    assert any("can't be made anew" in record.getMessage() for record in caplog.records)
