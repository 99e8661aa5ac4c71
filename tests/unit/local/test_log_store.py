from __future__ import annotations

import random
from pathlib import Path

import pytest

from airflow_aiptraining.local.log_store import LogFile, LogWriter, nanoseconds
from airflow_aiptraining.local.replica_wrapper import timestamp


def stamp(number: int) -> str:
    return timestamp(1_790_000_000_000_000_000 + number)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of 500 records, of very different lengths."""
    path = tmp_path / "output.log"
    lengths = random.Random(1)
    with path.open("w") as file:
        for number in range(500):
            file.write(f"{stamp(number * 10)} I {number} {'x' * lengths.choice((0, 5, 3000))}\n")
    return path


def numbers(records: object) -> list[int]:
    return [int(record.text.split()[0]) for record in records]  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", [-5, 0, 1, 10, 2_495, 2_500, 4_990, 4_991])
def test_reading_starts_at_a_timestamp(path: Path, first: int) -> None:
    expected = [number for number in range(500) if number * 10 >= first]

    assert numbers(LogFile(path, "f").forward(stamp(first))) == expected


@pytest.mark.parametrize("last", [-5, 0, 9, 10, 2_500, 4_989, 4_990, 9_999])
def test_reading_backwards_starts_at_a_timestamp(path: Path, last: int) -> None:
    expected = [number for number in reversed(range(500)) if number * 10 <= last]

    assert numbers(LogFile(path, "f").backward(stamp(last))) == expected


def test_both_directions_give_the_same_records(path: Path) -> None:
    file = LogFile(path, "f")

    assert list(file.forward()) == list(file.backward())[::-1]


def test_missing_and_empty_files_have_no_records(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    for name in ("missing", "empty"):
        assert list(LogFile(tmp_path / name, "f").forward()) == []
        assert list(LogFile(tmp_path / name, "f").backward()) == []


def test_line_that_is_being_written_is_not_read_yet(path: Path) -> None:
    with path.open("a") as file:
        file.write(f"{stamp(9_000)} E half a li")

    assert len(list(LogFile(path, "f").forward())) == 500
    assert numbers(LogFile(path, "f").backward())[0] == 499


def test_writer_goes_on_after_a_line_cut_by_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "service.log"
    LogWriter(path).write("one")
    with path.open("a") as file:
        file.write("2026-01-0")

    LogWriter(path).write("two\nthree", "E")

    records = list(LogFile(path, "f").forward())
    assert [(record.text, record.severity) for record in records] == [
        ("one", "INFO"), ("two", "ERROR"), ("three", "ERROR"),
    ]  # fmt: skip
    assert len({record.insert_id for record in records}) == 3


def test_clock_set_back_keeps_the_order(tmp_path: Path) -> None:
    path = tmp_path / "service.log"
    path.write_text("2999-01-01T00:00:00.000000000Z I future\n")

    LogWriter(path).write("now")

    assert [record.timestamp for record in LogFile(path, "f").forward()] == [
        "2999-01-01T00:00:00.000000000Z",
        "2999-01-01T00:00:00.000000001Z",
    ]


@pytest.mark.parametrize("value", [0, 1, 999_999_999, 1_790_000_000_123_456_789])
def test_timestamp_and_back(value: int) -> None:
    assert len(timestamp(value)) == 30
    assert nanoseconds(timestamp(value)) == value
