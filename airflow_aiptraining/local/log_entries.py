"""Cloud Logging's ``POST /v2/entries:list`` over the logs of this service's jobs.

Filters are those that gcloud's ``stream-logs`` and log readers send: on resource type and labels,
task name, timestamp, severity, insertId, and texts.  Entries come ordered by (timestamp, insertId),
both fixed in width, as gcloud compares them as text.

Source: logs of ML v1 jobs; Cloud Logging v2 ``LogEntry``.
"""

from __future__ import annotations

import asyncio
import base64
import heapq
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from airflow_aiptraining.local import filters
from airflow_aiptraining.local.errors import ApiError
from airflow_aiptraining.local.job_folder import JobFolder
from airflow_aiptraining.local.job_store import Job, JobStore
from airflow_aiptraining.local.log_store import EARLIEST, LATEST, LogFile, Record, nanoseconds

DEFAULT_PAGE, LARGEST_PAGE = 50, 1000

_SEVERITIES = (
    "DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY",
)  # fmt: skip
_TIMES = ("timestamp", "receiveTimestamp")
_NOT_FOUND = object()


@dataclass(frozen=True)
class JobLog:
    """All log files of one job, by task.

    :param tasks: (task name, trial id, file) of each writer.
    """

    project: str
    job_id: str
    tasks: tuple[tuple[str, str, LogFile], ...]

    @classmethod
    def of(cls, job: Job, store: JobStore, folder: JobFolder) -> JobLog:
        """Return the log of *job*."""
        tasks = [
            (path.stem, "", LogFile(path, f"{path.stem}-{job.uid[:8]}"))
            for path in sorted((folder.path / "logs").glob("*.log"))
        ]
        for replica in store.replicas(job.uid):
            output = folder.process(replica.uid).output
            tasks.append((replica.task_name, replica.trial, LogFile(output, replica.uid[:16])))
        return cls(job.project, job.job_id, tuple(tasks))

    def entries(self, first: str, last: str, *, newest_first: bool) -> Iterator[dict[str, Any]]:
        """Give the entries between two timestamps, in order."""
        each = [self._of_task(*task, first, last, newest_first) for task in self.tasks]
        return heapq.merge(*each, key=_position, reverse=newest_first)

    def _of_task(
        self, task: str, trial: str, file: LogFile, first: str, last: str, newest_first: bool
    ) -> Iterator[dict[str, Any]]:
        records = file.backward(last) if newest_first else file.forward(first)
        for record in records:
            if record.timestamp < first if newest_first else record.timestamp > last:
                return
            yield self._entry(record, task, trial)

    def _entry(self, record: Record, task: str, trial: str) -> dict[str, Any]:
        labels = {
            "ml.googleapis.com/job_id": self.job_id,
            "ml.googleapis.com/task_name": task,
            "compute.googleapis.com/resource_name": f"{self.job_id}-{task}",
            "compute.googleapis.com/zone": "local",
        }
        if trial:
            labels["ml.googleapis.com/trial_id"] = trial
        return {
            "logName": f"projects/{self.project}/logs/{quote(task, safe='')}",
            "insertId": record.insert_id,
            "timestamp": record.timestamp,
            "receiveTimestamp": record.timestamp,
            "severity": record.severity,
            "resource": {
                "type": "ml_job",
                "labels": {
                    "job_id": self.job_id,
                    "project_id": self.project,
                    "task_name": task,
                },
            },
            "labels": labels,
            "jsonPayload": {
                "message": record.text,
                "levelname": record.severity,
                "created": nanoseconds(record.timestamp) / 1e9,
            },
        }


@dataclass(frozen=True)
class Query:
    """What one call of ``entries:list`` asks for."""

    projects: tuple[str, ...]
    filter: filters.Node
    newest_first: bool
    page_size: int
    after: tuple[str, str] | None

    @classmethod
    def of(cls, body: dict[str, Any]) -> Query:
        """Read a request's body.

        :raises ApiError: 400.
        """
        names = [
            *_list(body, "resourceNames"),
            *(f"projects/{p}" for p in _list(body, "projectIds")),
        ]
        if not names:
            raise _invalid("resourceNames is missing: name at least one project, 'projects/…'")
        for name in names:
            if not isinstance(name, str) or not name.startswith("projects/"):
                raise _invalid(f"resourceNames: {name!r} is not 'projects/…'")
        order = _text(body, "orderBy") or "timestamp asc"
        if order not in {"timestamp", "timestamp asc", "timestamp desc"}:
            raise _invalid(f"orderBy: {order!r} is neither 'timestamp asc' nor 'timestamp desc'")
        size = body.get("pageSize") or DEFAULT_PAGE
        if not isinstance(size, int) or not 0 < size <= LARGEST_PAGE:
            raise _invalid(f"pageSize must be between 1 and {LARGEST_PAGE}, not {size!r}")
        return cls(
            projects=tuple(name.split("/")[1] for name in names),
            filter=_read_filter(_text(body, "filter")),
            newest_first=order.endswith("desc"),
            page_size=size,
            after=_read_token(body["pageToken"]) if body.get("pageToken") else None,
        )

    def page(self, logs: Sequence[JobLog]) -> dict[str, Any]:
        """Return the answer: matching entries, and the token of the next page if there is one."""
        low, high = filters.bounds(self.filter, "timestamp")
        first, last = low or EARLIEST, high or LATEST
        if self.after:
            if self.newest_first:
                last = min(last, self.after[0])
            else:
                first = max(first, self.after[0])
        each = [log.entries(first, last, newest_first=self.newest_first) for log in logs]
        merged = heapq.merge(*each, key=_position, reverse=self.newest_first)
        wanted = (entry for entry in merged if self._is_new(entry) and self._matches(entry))
        entries = list(itertools.islice(wanted, self.page_size + 1))
        answer: dict[str, Any] = {}
        if entries:
            answer["entries"] = entries[: self.page_size]
        if len(entries) > self.page_size:
            answer["nextPageToken"] = _token(_position(entries[self.page_size - 1]))
        return answer

    def _is_new(self, entry: dict[str, Any]) -> bool:
        if self.after is None:
            return True
        position = _position(entry)
        return position < self.after if self.newest_first else position > self.after

    def _matches(self, entry: dict[str, Any]) -> bool:
        return filters.matches(
            self.filter, lambda path: _field(entry, path), _compare, has_substring=True
        )


def routes(store: JobStore, folder: Callable[[str], JobFolder]) -> list[BaseRoute]:
    """Return the routes of Cloud Logging, and one page for people.

    :param folder: job's uid → its folder.
    """

    async def list_entries(request: Request) -> Response:
        body = await _json_body(request)
        query = Query.of(body)
        job_ids = filters.required_values(query.filter, "resource.labels.job_id", ("=",))
        logs = [
            JobLog.of(job, store, folder(job.uid))
            for project in dict.fromkeys(query.projects)
            for job in store.search(project, job_ids=job_ids)
        ]
        return JSONResponse(await asyncio.to_thread(query.page, logs))

    async def read(request: Request) -> Response:
        project, job_id = request.path_params["project"], request.path_params["job_id"]
        job = store.get(project, job_id)
        if job is None:
            raise ApiError(404, "NOT_FOUND", f"Project {project} has no job {job_id}.")
        log = JobLog.of(job, store, folder(job.uid))

        def text() -> str:
            entries = log.entries(EARLIEST, LATEST, newest_first=True)
            newest = list(itertools.islice(entries, 10_000))
            return "".join(_line(entry) for entry in reversed(newest))

        return PlainTextResponse(await asyncio.to_thread(text))

    return [
        Route("/v2/entries:list", list_entries, methods=["POST"]),
        Route("/logs/{project}/{job_id}", read, methods=["GET"]),
    ]


def _line(entry: dict[str, Any]) -> str:
    task = entry["resource"]["labels"]["task_name"]
    return f"{entry['timestamp']} {entry['severity']:7} {task} {entry['jsonPayload']['message']}\n"


def _position(entry: dict[str, Any]) -> tuple[str, str]:
    return entry["timestamp"], entry["insertId"]


def _field(entry: dict[str, Any], path: str) -> str | None:
    """Return the value at a dotted path; label keys may hold dots themselves."""
    if path == "textPayload":
        path = "jsonPayload.message"
    found: Any = entry
    parts = path.split(".")
    while parts:
        if not isinstance(found, dict):
            return None
        for length in range(len(parts), 0, -1):
            key = ".".join(parts[:length])
            if key in found:
                found, parts = found[key], parts[length:]
                break
        else:
            return None
    if path == "logName":
        return unquote(str(found))
    return str(found) if not isinstance(found, dict) else json.dumps(found)


def _compare(found: str, asked: str) -> int:
    if found in _SEVERITIES and asked.upper() in _SEVERITIES:
        return _SEVERITIES.index(found) - _SEVERITIES.index(asked.upper())
    return (found > asked) - (found < asked)


def _read_filter(text: str) -> filters.Node:
    try:
        node = filters.parse(text)
        for name in _TIMES:
            # All of one width: then text order is time order, as in the files.
            node = filters.replace_values(node, name, _full_timestamp)
    # OverflowError: a time that is none in UTC, before the year 1 or after 9999.
    except (ValueError, OverflowError) as error:
        raise _invalid(f"Unparseable filter: {error}") from error
    return node


def _full_timestamp(text: str) -> str:
    """Return any RFC 3339 time as the files hold it: UTC, nine decimals.

    :raises ValueError: it isn't one.
    """
    head, dot, rest = text.partition(".")
    fraction = "".join(itertools.takewhile(str.isdigit, rest))
    zone = rest[len(fraction) :]
    moment = datetime.fromisoformat(head + zone if dot else text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Not strftime: it writes the year 1 without zeros, and texts are compared.
    seconds = moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    return f"{seconds}.{fraction[:9].ljust(9, '0')}Z"


def _token(position: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode()


def _read_token(token: Any) -> tuple[str, str]:
    try:
        stamp, insert_id = json.loads(base64.urlsafe_b64decode(token))
        return str(stamp), str(insert_id)
    except (ValueError, TypeError, RecursionError) as error:
        raise _invalid("pageToken is not one that this service gave") from error


async def _json_body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body() or b"{}")
        # Halves of surrogate pairs can be escaped in JSON, but neither stored nor answered.
        json.dumps(body, ensure_ascii=False).encode()
    except RecursionError as error:
        raise _invalid("The request's body is nested too deeply") from error
    except ValueError as error:
        raise _invalid(f"The request's body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise _invalid("The request's body must be a JSON object")
    return body


def _list(body: dict[str, Any], name: str) -> list[Any]:
    value = body.get(name) or []
    if not isinstance(value, list):
        raise _invalid(f"{name} must be a list, not {value!r}")
    return value


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name) or ""
    if not isinstance(value, str):
        raise _invalid(f"{name} must be a text, not {value!r}")
    return value


def _invalid(message: str) -> ApiError:
    return ApiError(400, "INVALID_ARGUMENT", message)
