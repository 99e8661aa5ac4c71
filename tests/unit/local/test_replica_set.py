"""Which replica's end decides a job."""

from __future__ import annotations

import time

import pytest

from airflow_aiptraining.local.job_store import Replica
from airflow_aiptraining.local.replica_set import End, deciding
from airflow_aiptraining.local.replicas import Exit

SOON = 0.4
"""Seconds after another end."""
LATER = 30.0


def end(
    role: str,
    returncode: int | None,
    ended: float | None,
    *,
    position: int = 0,
    attempt: int = 1,
    is_recorded: bool = False,
) -> End:
    replica = Replica(
        f"{role}{position}",
        "job",
        role,
        position,
        attempt=attempt,
        exit={"returncode": returncode} if is_recorded else None,
    )
    return End(replica, Exit(returncode, error="" if ended else "lost", ended=ended))


@pytest.mark.parametrize(
    ("ends", "uid"),
    [
        ([end("master", 0, 100)], "master0"),
        ([end("master", 1, 100)], "master0"),
        ([end("worker", 0, 100)], None),
        ([end("worker", 1, 100)], "worker0"),
        ([end("ps", 1, 100)], "ps0"),
        ([end("evaluator", 1, 100)], "evaluator0"),
        # What fails as the master is done, or just before, does not count; what failed long before
        # does, though nobody saw it then.
        ([end("master", 0, 100), end("worker", 1, 100 + SOON)], "master0"),
        ([end("master", 0, 100), end("worker", 1, 100 - SOON)], "master0"),
        ([end("master", 0, 100), end("worker", 1, 100 - LATER)], "worker0"),
        # The first failure is the cause.
        ([end("master", 1, 100), end("worker", 1, 99)], "worker0"),
        ([end("master", 1, 99), end("worker", 1, 100)], "master0"),
        ([end("worker", 1, 100), end("worker", 1, 99, position=1)], "worker1"),
        # The machine went down after the master was done.
        ([end("master", 0, 100), end("worker", None, None)], "master0"),
        ([end("master", None, None), end("worker", None, None)], "master0"),
        # Crashes are tried again, five times.
        ([end("master", -11, 100)], None),
        ([end("worker", 134, 100, attempt=5)], None),
        ([end("worker", 134, 100, attempt=6)], "worker0"),
        ([end("worker", -6, 100), end("master", 0, 101)], "master0"),
        ([end("worker", -9, 100)], "worker0"),
        # The service was killed after it had decided, while it stopped the others.
        ([end("master", -9, 90), end("worker", 1, 100, is_recorded=True)], "worker0"),
        ([end("worker", -9, 90), end("master", 0, 100, is_recorded=True)], "master0"),
        ([end("worker", -11, 100, is_recorded=True)], None),
    ],
)
def test_first_end_that_counts_decides(ends: list[End], uid: str | None) -> None:
    decided = deciding(ends)

    assert (decided and decided.replica.uid) == uid


def test_fresh_failure_waits_for_the_masters_success() -> None:
    now = time.time()

    assert deciding([end("worker", 1, now)]) is None
    assert deciding([end("worker", 1, now), end("master", 0, now + SOON)]) is not None
    assert deciding([end("worker", 1, now - LATER)]) is not None
