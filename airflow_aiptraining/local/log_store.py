"""Log records on disk: one append-only file for each writer, searched by bisection.

The file *is* the log: what a replica's wrapper writes is what a reader gets, there is no second
copy to keep in step, so nothing is lost or doubled when the service dies and starts again.

A record is one line, ``<timestamp> <D|I|W|E> <text>``, its timestamp RFC 3339 with nine decimals
(30 characters) and growing strictly within the file.  The record's offset makes its insertId.
"""

from __future__ import annotations

import calendar
import contextlib
import mmap
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_aiptraining.local.replica_wrapper import timestamp

SEVERITIES = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR"}
"""The tag in a record → LogSeverity."""

_RECORD = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) ([DIWE]) (.*)", re.DOTALL)
EARLIEST = "0000"
LATEST = "9999"


@dataclass(frozen=True, order=True)
class Record:
    """One line of a log.

    :param timestamp: as in the file: fixed width, so that text order is time order.
    :param insert_id: unique, and growing within one file.
    """

    timestamp: str
    insert_id: str
    severity: str
    text: str


class LogWriter:
    """Writes the service's own lines about one job.

    :param path: the file; made with its folder when the first line comes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = 0
        self._opened = False

    def write(self, text: str, severity: str = "I") -> None:
        """Add *text*, one record a line.

        :param severity: a key of ``SEVERITIES``.
        """
        if not self._opened:
            self._open()
        records = []
        for line in text.split("\n"):
            self._last = max(time.time_ns(), self._last + 1)
            records.append(f"{timestamp(self._last)} {severity} {line}\n")
        with self._path.open("ab", buffering=0) as file:
            file.write("".join(records).encode("utf-8", "replace"))

    def _open(self) -> None:
        """Go on where an earlier process of the service stopped, perhaps in mid-line."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        for record in LogFile(self._path, "").backward():
            self._last = nanoseconds(record.timestamp)
            break
        with self._path.open("a+b", buffering=0) as file:
            size = file.seek(0, 2)
            if size:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    file.write(b"\n")
        self._opened = True


def nanoseconds(stamp: str) -> int:
    """Return the nanoseconds since the epoch of a record's timestamp."""
    seconds = calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S"))
    return seconds * 1_000_000_000 + int(stamp[20:29])


class LogFile:
    """Reads one file of records.

    :param path: the file; a missing one has no records.
    :param name: makes insertIds of different files differ; e.g. a replica's uid.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name

    def forward(self, first: str = EARLIEST) -> Iterator[Record]:
        """Give the records from timestamp *first* on, oldest first."""
        with self._bytes() as data:
            start = _first_at(data, first)
            while (end := data.find(b"\n", start)) >= 0:  # a last line without end: being written
                record = self._parse(data[start:end], start)
                if record is not None and record.timestamp >= first:
                    yield record
                start = end + 1

    def backward(self, last: str = LATEST) -> Iterator[Record]:
        """Give the records up to timestamp *last*, newest first."""
        with self._bytes() as data:
            # "~" sorts after every character of a timestamp: the first record behind *last*.
            end = data.rfind(b"\n", 0, _first_at(data, last + "~"))
            while end >= 0:
                start = data.rfind(b"\n", 0, end) + 1
                record = self._parse(data[start:end], start)
                if record is not None and record.timestamp <= last:
                    yield record
                end = start - 1

    @contextlib.contextmanager
    def _bytes(self) -> Iterator[mmap.mmap | bytes]:
        """Give the file as it is now; it only ever grows, so the view stays true."""
        try:
            with self._path.open("rb") as file:
                view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (FileNotFoundError, ValueError):  # an empty file can't be mapped
            yield b""
            return
        with view:
            yield view

    def _parse(self, line: bytes, offset: int) -> Record | None:
        match = _RECORD.match(line)
        if match is None:
            return None  # the end of a write that a crash cut
        stamp, tag, text = match.groups()
        return Record(
            stamp.decode(),
            f"{self._name}-{offset:012d}",
            SEVERITIES[tag.decode()],
            text.decode("utf-8", "replace"),
        )


def _first_at(data: mmap.mmap | bytes, wanted: str) -> int:
    """Return the offset of the first record whose timestamp is >= *wanted*, by bisection."""
    goal = wanted.encode()
    low, high = 0, len(data)
    while low < high:
        middle = (low + high) // 2
        start = data.rfind(b"\n", 0, middle) + 1
        end = data.find(b"\n", middle)
        end = len(data) if end < 0 else end + 1
        # A torn line has no timestamp that means anything; it is passed over with the one before.
        if data[start : start + 30] < goal:
            low = end
        else:
            high = start
    return low
