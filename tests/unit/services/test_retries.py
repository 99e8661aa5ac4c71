"""How long to wait before a call is repeated, and when to stop."""

from __future__ import annotations

import logging
import re

import pytest

from airflow_aiptraining.exceptions import JobNotFoundError, TransientServiceError
from airflow_aiptraining.services import retries
from airflow_aiptraining.services.retries import LONGEST_PAUSE, PATIENCE, patiently, pause_after


def refused(retry_after: float | None = None) -> TransientServiceError:
    return TransientServiceError("not now", status=429, retry_after=retry_after)


@pytest.mark.parametrize(
    ("asked", "least", "most"), [(17.0, 17.0, 18.0), (0.0, 1.0, 2.0), (1e6, PATIENCE, PATIENCE)]
)
def test_pause_is_what_the_service_asked_for_within_bounds(
    asked: float, least: float, most: float
) -> None:
    assert least <= pause_after(refused(asked), 1) <= most


def test_pause_grows_with_the_failures_in_a_row_up_to_a_bound() -> None:
    pauses = [pause_after(refused(), failures) for failures in (1, 3, 5, 6, 1_000_000)]

    assert pauses[0] <= 2.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE


def test_two_callers_do_not_come_back_at_the_same_moment() -> None:
    assert len({pause_after(refused(5.0), 1) for _ in range(20)}) > 1


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(retries, "LONGEST_PAUSE", 0.002)


def test_call_is_repeated_until_it_is_answered_and_the_log_says_since_when(
    short: None, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([refused(), refused(), "the job"])

    def call() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(call) == "the job"
    assert len(re.findall(r"No answer since \d\d:\d\d:\d\d UTC", caplog.text)) == 2


def test_patience_ends_with_the_last_error(short: None) -> None:
    def call() -> None:
        raise refused()

    with pytest.raises(TransientServiceError, match="not now"):
        patiently(call, patience=0.01)


def test_refusal_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def call() -> None:
        raise JobNotFoundError("none", status=404)

    with pytest.raises(JobNotFoundError):
        patiently(call)
    assert caplog.text == ""
