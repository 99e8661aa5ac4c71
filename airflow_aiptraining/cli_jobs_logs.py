"""``aiptraining jobs logs``: print a job's log, and go on while the job does."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_aiptraining.cli_jobs_place import PATIENCE, add_job_id, add_place, place_of, positive
from airflow_aiptraining.cli_output import note, write
from airflow_aiptraining.core.states import JobState

if TYPE_CHECKING:
    from airflow_aiptraining.services.logs import LogEntry
    from airflow_aiptraining.services.ml_v1 import MLv1Service

#: Seconds between two looks at the log of a job that runs; the first ones come sooner.
FIRST_INTERVAL, INTERVAL = 0.5, 2
#: Seconds for the last lines of a job that has ended to arrive.
SETTLING = 0.5
#: A service that is away (restarted, say) is waited for so many seconds while a log is followed.
FOLLOWING_PATIENCE = 120.0
#: Replicas write side by side: a line may show up after a younger one of another replica.
_OVERLAP = timedelta(seconds=5)

_TASK_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def add_command(verbs: Any) -> None:
    """Add ``jobs logs`` to the parser.

    :param verbs: what ``add_subparsers`` returned.
    """
    logs = verbs.add_parser(
        "logs",
        help="print a job's log",
        description="Print a job's log, oldest line first: severity, time, replica and text, with "
        "tabs between them.",
    )
    add_job_id(logs)
    add_place(logs)
    logs.add_argument(
        "--follow", action="store_true", help="go on until the job has ended; Ctrl-C leaves it be"
    )
    logs.add_argument(
        "--task-name", type=_task_name, metavar="NAME", help="only this one: master-replica-0"
    )
    logs.add_argument(
        "--polling-interval",
        type=positive,
        default=INTERVAL,
        metavar="SECONDS",
        help=f"of --follow; default: {INTERVAL}",
    )
    logs.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: one object a line"
    )
    logs.set_defaults(run=_logs)


def _logs(arguments: argparse.Namespace) -> int:
    from airflow_aiptraining.services.retries import patiently

    service, job_id = place_of(arguments).service(), arguments.job_id
    # An unknown job's log is empty; that would look like a job that says nothing.
    patiently(lambda: service.get_job(job_id), patience=PATIENCE)
    task_name = arguments.task_name or ""
    tell = _as_json if arguments.format == "json" else as_text(write)
    if arguments.follow:
        job = follow(
            service,
            job_id,
            tell,
            task_name=task_name,
            interval=arguments.polling_interval,
        )
        note(f"Job {job_id!r} has ended: {JobState.of(job)}.")
    else:
        tail = LogTail(service, job_id, task_name)
        patiently(lambda: _tell_new(tail, tell), patience=PATIENCE)
    return 0


def follow(
    service: MLv1Service,
    job_id: str,
    tell: Callable[[LogEntry], None],
    *,
    task_name: str = "",
    interval: float = INTERVAL,
) -> dict[str, Any]:
    """Tell each line of a job's log until the job has ended and nothing more comes.

    The job itself is only asked for while its log is silent: one request a look, at most two.

    :return: the job as it ended.
    :raises ServiceError: log or job can't be read.
    """
    from airflow_aiptraining.services.retries import patiently

    tail, pause = LogTail(service, job_id, task_name), min(FIRST_INTERVAL, interval)
    while True:
        if not patiently(lambda: _tell_new(tail, tell), patience=FOLLOWING_PATIENCE):
            job = patiently(lambda: service.get_job(job_id), patience=FOLLOWING_PATIENCE)
            if JobState.of(job).is_terminal:
                break
        time.sleep(pause)
        pause = min(2 * pause, interval)
    while True:
        time.sleep(SETTLING)
        if not patiently(lambda: _tell_new(tail, tell), patience=FOLLOWING_PATIENCE):
            return job


class LogTail:
    """Reads what is new in a job's log, each line once.

    :param task_name: only this replica's; empty for all.
    """

    def __init__(self, service: MLv1Service, job_id: str, task_name: str = "") -> None:
        self._service = service
        self._job_id = job_id
        self._task_name = task_name
        self._newest = datetime.min.replace(tzinfo=UTC)
        self._since = ""
        # What a read that begins at _since may find again, and in the order in which it came.
        self._known: set[tuple[str, str]] = set()
        self._recent: deque[tuple[datetime, tuple[str, str]]] = deque()

    def new(self) -> Iterator[LogEntry]:
        """Yield the entries that no earlier call has yielded.

        :raises ServiceError: the log can't be read on; the next call goes on from there.
        """
        entries = self._service.log_entries(
            self._job_id, task_name=self._task_name, since=self._since
        )
        for entry in entries:
            key = (entry.timestamp, entry.insert_id)
            if key in self._known:
                continue
            self._remember(key)
            yield entry

    def _remember(self, key: tuple[str, str]) -> None:
        at = datetime.fromisoformat(key[0])
        self._known.add(key)
        self._recent.append((at, key))
        if at <= self._newest:
            return
        self._newest = at
        first = at - _OVERLAP
        self._since = first.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        while self._recent[0][0] < first:
            self._known.discard(self._recent.popleft()[1])


def as_text(print_line: Callable[[str], None]) -> Callable[[LogEntry], None]:
    """Return what prints an entry as gcloud does: one line for each line of its text."""

    def tell(entry: LogEntry) -> None:
        at = datetime.fromisoformat(entry.timestamp).astimezone()
        head = f"{entry.severity}\t{at:%Y-%m-%d %H:%M:%S %z}\t{entry.task_name}"
        for line in entry.message.splitlines() or [""]:
            print_line(f"{head}\t{line}")

    return tell


def _as_json(entry: LogEntry) -> None:
    write(json.dumps(asdict(entry), ensure_ascii=False))


def _tell_new(tail: LogTail, tell: Callable[[LogEntry], None]) -> int:
    count = 0
    for entry in tail.new():
        tell(entry)
        count += 1
    sys.stdout.flush()
    return count


def _task_name(text: str) -> str:
    if not _TASK_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"e.g. master-replica-0 is expected, not {text!r}")
    return text
