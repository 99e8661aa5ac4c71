"""Following a log: what replicas write side by side comes in any order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_aiptraining.cli_jobs_logs import LogTail
from airflow_aiptraining.services.logs import LogEntry


def entry(second: float, insert_id: str = "a") -> LogEntry:
    timestamp = f"2026-11-21T10:00:{second:012.9f}Z"
    return LogEntry(timestamp, insert_id, "INFO", "master-replica-0", f"{second} {insert_id}")


class Log:
    """A service that has these entries, and remembers from where on it was read."""

    def __init__(self, *entries: LogEntry) -> None:
        self.entries = list(entries)
        self.since: list[str] = []

    def log_entries(self, job_id: str, *, task_name: str, since: str) -> Iterator[LogEntry]:
        self.since.append(since)
        for each in sorted(self.entries, key=lambda e: (e.timestamp, e.insert_id)):
            if each.timestamp >= since:
                yield each


def tail(log: Any) -> LogTail:
    return LogTail(log, "j")


def test_each_line_comes_once_and_old_ones_are_not_read_again() -> None:
    log = Log(entry(1), entry(20), entry(20, "b"))
    following = tail(log)
    assert list(following.new()) == log.entries
    assert list(following.new()) == []

    log.entries.append(entry(20, "c"))
    assert list(following.new()) == [entry(20, "c")]
    assert log.since == ["", *["2026-11-21T10:00:15.000000Z"] * 2]


def test_a_line_that_is_late_comes_all_the_same() -> None:
    log = Log(entry(20))
    following = tail(log)
    list(following.new())

    log.entries += [entry(17), entry(21)]
    assert list(following.new()) == [entry(17), entry(21)]
    assert list(following.new()) == []


def test_reading_goes_on_where_it_was_cut() -> None:
    log = Log(entry(1), entry(2), entry(30))
    following = tail(log)
    first = following.new()
    assert [next(first), next(first)] == [entry(1), entry(2)]

    assert list(following.new()) == [entry(30)]
