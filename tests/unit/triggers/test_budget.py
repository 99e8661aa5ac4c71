"""What requests cost and when they are due: pure, the clock is the test's."""

from __future__ import annotations

import itertools

import pytest

from airflow_aiptraining.triggers import budget
from airflow_aiptraining.triggers.budget import RequestBudget, process_budget


class Clock:
    """A clock that goes when it is told."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def sent_at(spender: RequestBudget, clock: Clock, requests: int) -> list[float]:
    """Send requests, each as soon as the budget allows."""
    times = []
    for _ in range(requests):
        clock.now += spender.reserve()
        times.append(clock.now)
    return times


@pytest.mark.parametrize("per_minute", [2, 7, 60, 240, 1_000])
def test_no_minute_has_more_requests_than_the_budget(per_minute: int) -> None:
    clock = Clock()
    times = sent_at(RequestBudget(per_minute, clock), clock, 5 * per_minute)

    busiest = max(sum(start <= at < start + 60 for at in times) for start in times)

    assert busiest <= per_minute
    assert len(times) / (times[-1] - times[0]) * 60 >= per_minute * 0.5


def test_an_eighth_goes_at_once_and_is_earned_again() -> None:
    clock = Clock()
    spender = RequestBudget(240, clock)

    assert sent_at(spender, clock, 30)[-1] == 1_000.0
    assert sent_at(spender, clock, 1)[-1] == pytest.approx(1_000.0 + 1 / spender.rate)
    clock.now += 3_600
    assert sent_at(spender, clock, 30)[-1] == clock.now
    assert spender.reserve() > 0


def test_requests_at_the_same_time_queue_behind_each_other() -> None:
    clock = Clock()
    spender = RequestBudget(8, clock)

    pauses = [spender.reserve() for _ in range(4)]

    assert pauses[0] == 0.0
    assert [later - earlier for earlier, later in itertools.pairwise(pauses)] == pytest.approx(
        [1 / spender.rate] * 3
    )


@pytest.mark.parametrize("nonsense", [0, -5])
def test_a_budget_allows_one_request_a_minute_at_least(nonsense: int) -> None:
    assert RequestBudget(nonsense).per_minute == 1


def test_rounds_that_keep_their_interval_keep_the_budget() -> None:
    spender = RequestBudget(240)

    assert spender.interval(100) == pytest.approx(100 * 60 / 210)


def test_interval_is_longer_where_others_spend_as_well() -> None:
    spender = RequestBudget(240)

    assert spender.interval(10, pause=2.0) == 20.0


def test_a_process_has_one_budget() -> None:
    assert process_budget(240) is process_budget(240)


def test_first_look_leaves_airflow_time_and_short_intervals_alone() -> None:
    assert budget.first_look(10.0, 60.0) == 13.0
    assert budget.first_look(10.0, 0.5) == 10.5


def test_looks_are_never_later_than_the_interval() -> None:
    assert budget.next_look(10.0, 60.0, 0.0) == 64.0
    assert budget.next_look(10.0, 60.0, 1.0) == 70.0


@pytest.mark.parametrize(
    ("due", "pages", "lists"),
    [(1, 1, False), (3, 1, False), (4, 1, True), (12, 10, True), (12, 12, False), (500, 5, True)],
)
def test_lists_only_where_a_list_is_cheaper(due: int, pages: int, lists: bool) -> None:
    assert budget.prefers_list(due, pages) is lists


def test_pages() -> None:
    assert [budget.pages_of(jobs) for jobs in (0, 1, 100, 101, 10_000)] == [1, 1, 1, 2, 100]


def test_a_list_of_others_jobs_is_given_up() -> None:
    assert not budget.is_poor(4, 0, due=10)
    assert budget.is_poor(5, 4, due=10)
    assert not budget.is_poor(5, 5, due=10)


def test_a_list_may_waste_a_tenth_of_what_reading_each_costs() -> None:
    """Lists are newest first as a rule, and triggers start with the oldest jobs."""
    assert not budget.is_poor(99, 0, due=1_000)
    assert budget.is_poor(100, 0, due=1_000)
