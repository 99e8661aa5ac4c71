"""What a waiter is told, and when: pure but for its future."""

from __future__ import annotations

import asyncio
import math
import sys

import pytest

from airflow_aiptraining.triggers import waiter as module
from airflow_aiptraining.triggers.waiter import Trouble, Waiter

AWAY = Trouble(5.0, "HTTP 503", is_away=True)
REFUSED = Trouble(5.0, "HTTP 403: you may not.", is_away=False)


@pytest.fixture
def waiter() -> Waiter:
    return Waiter("j_1", 60.0, None, now=100.0)


async def has_news(waiter: Waiter) -> bool:
    """Take the news, if there are any."""
    try:
        await asyncio.wait_for(waiter.news(), 0.01)
    except TimeoutError:
        return False
    return True


async def test_is_told_a_state_once(waiter: Waiter) -> None:
    assert not await has_news(waiter)
    assert waiter.saw("RUNNING", 160.0, 100.0) and await has_news(waiter)
    assert not waiter.saw("RUNNING", 220.0, 160.0) and not await has_news(waiter)
    assert waiter.saw("SUCCEEDED", 280.0, 220.0) and await has_news(waiter)
    assert waiter.is_over and waiter.next_at(220.0, 220.0) == math.inf


async def test_is_woken_while_it_waits(waiter: Waiter) -> None:
    waiting = asyncio.ensure_future(waiter.news())
    await asyncio.sleep(0)
    waiter.saw("QUEUED", 160.0, 100.0)
    waiter.saw("RUNNING", 160.0, 100.0)

    await waiting
    assert waiter.state == "RUNNING"
    assert not await has_news(waiter)


@pytest.mark.parametrize("state", ["STATE_UNSPECIFIED", "NEW_WORD", "CANCELLING", "PREPARING"])
def test_only_an_end_state_is_an_end(waiter: Waiter, state: str) -> None:
    waiter.saw(state, 160.0, 100.0)

    assert not waiter.is_over


def test_trouble_is_told_at_once_then_every_five_minutes(waiter: Waiter) -> None:
    told = [now for now in range(100, 1_000, 20) if waiter.missed(AWAY, now + 20, now, now)]

    assert told == [100, 400, 700]


def test_flapping_is_not_told_each_time(waiter: Waiter) -> None:
    waiter.saw("RUNNING", 110.0, 100.0)

    assert waiter.missed(AWAY, 120.0, 110.0, 110.0)
    assert waiter.saw("RUNNING", 130.0, 120.0), "it answers again"
    assert not waiter.missed(AWAY, 140.0, 130.0, 130.0)
    assert not waiter.saw("RUNNING", 150.0, 140.0)


@pytest.mark.parametrize(
    ("refusal", "state", "limit"),
    [
        ("not found", "", module.UNKNOWN_LIMIT),
        ("not found", "RUNNING", module.VANISHED_LIMIT),
        ("not allowed", "RUNNING", module.REFUSED_LIMIT),
        ("not allowed", "", module.REFUSED_LIMIT),
    ],
)
def test_a_refusal_that_lasts_ends_the_wait(
    waiter: Waiter, refusal: str, state: str, limit: float
) -> None:
    if state:
        waiter.saw(state, 100.0, 100.0)
    now, looks = 100.0, 0
    while not waiter.error:
        assert now <= 100.0 + limit * 1.5
        waiter.refused(refusal, REFUSED, now, now)
        looks += 1
        now = waiter.due

    assert looks >= module.LEAST_LOOKS
    assert waiter.error.startswith("HTTP 403: you may not. ") and "'j_1'" in waiter.error
    assert waiter.is_over


def test_two_looks_are_never_enough(waiter: Waiter) -> None:
    waiter.refused("not found", REFUSED, 100.0, 100.0)
    waiter.refused("not found", REFUSED, 9_000.0, 9_000.0)

    assert not waiter.error


def test_a_look_between_refusals_begins_anew(waiter: Waiter) -> None:
    for now in (100.0, 110.0, 120.0, 128.0):
        waiter.refused("not found", REFUSED, now, now)
    waiter.saw("RUNNING", 130.0, 129.0)
    for now in (130.0, 140.0, 200.0, 249.0):
        waiter.refused("not found", REFUSED, now, now)

    assert not waiter.error


def test_deadline_wants_a_look_and_is_told_without_a_change() -> None:
    waiter = Waiter("j_1", 60.0, 1_010.0, now=100.0)
    waiter.saw("RUNNING", 160.0, 1_000.0)

    assert waiter.next_at(100.0, 1_000.0) == 110.0
    assert not waiter.is_due(109.0, 1_009.0)
    assert waiter.is_due(110.0, 1_010.0)
    assert waiter.saw("RUNNING", 170.0, 1_010.0)


def test_a_waiter_is_small(waiter: Waiter) -> None:
    assert not hasattr(waiter, "__dict__")
    assert sys.getsizeof(waiter) < 200
