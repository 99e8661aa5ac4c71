"""A job's log, read from Cloud Logging (``entries:list``)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.auth.credentials import Credentials

from airflow_aiptraining.exceptions import TransientServiceError
from airflow_aiptraining.services.http import TIMEOUT, ApiClient

#: The end of a log is read for somebody who waits for a failure's cause: one call that isn't
#: answered counts as lost after so many seconds ...
TAIL_TIMEOUT = 10.0
#: ... and no page is asked for after so many.  Cloud Logging may answer page after empty page.
TAIL_LIMIT = 20.0


@dataclass(frozen=True)
class LogEntry:
    """One line of a job's log.

    :param timestamp: RFC 3339, as the service wrote it.
    :param insert_id: tells entries of one timestamp apart.
    :param severity: ``INFO``, ``ERROR`` ...; raw stderr lines are ``ERROR``, whatever they say.
    :param task_name: the replica, e.g. ``master-replica-0``; ``service`` for the service's own.
    :param message: the text.
    """

    timestamp: str
    insert_id: str
    severity: str
    task_name: str
    message: str

    @classmethod
    def of(cls, entry: dict[str, Any]) -> LogEntry:
        """Read a ``LogEntry`` resource.  Source: gcloud's own reader of ``ml_job`` logs."""
        labels = entry.get("labels", {})
        resource = entry.get("resource", {}).get("labels", {})
        payload = entry.get("jsonPayload")
        message = (payload or {}).get("message", "") if payload else entry.get("textPayload", "")
        return cls(
            timestamp=str(entry.get("timestamp", "")),
            insert_id=str(entry.get("insertId", "")),
            severity=str(entry.get("severity", "DEFAULT")),
            task_name=str(
                resource.get("task_name")
                or labels.get("task_name")
                or labels.get("ml.googleapis.com/task_name")
                or "unknown_task"
            ),
            message=str(message),
        )


class LogReader:
    """Reads the entries of ``ml_job`` resources of one project.

    :param logging_endpoint: URL; empty for Google's own.
    """

    def __init__(
        self,
        project_id: str,
        credentials: Credentials,
        *,
        logging_endpoint: str = "",
        timeout: float = TIMEOUT,
    ) -> None:
        self._project_id = project_id
        self._client = ApiClient(
            "logging", "v2", credentials, api_endpoint=logging_endpoint, timeout=timeout
        )

    def entries(
        self,
        job_id: str,
        *,
        task_name: str = "",
        since: str = "",
        newest_first: bool = False,
        page_size: int = 1000,
    ) -> Iterator[LogEntry]:
        """Yield a job's log entries in order, page by page.

        :param task_name: only this replica's; empty for all.
        :param since: only entries of this timestamp and later ones; RFC 3339.
        :param newest_first: the log's end; what isn't found within :data:`TAIL_LIMIT` is left out.
        :raises ServiceError: the log can't be read.
        """
        until = time.monotonic() + TAIL_LIMIT if newest_first else math.inf
        doing, found = f"Reading the log of job {job_id!r}", 0
        conditions = [
            '(resource.type="ml_job" OR resource.type="cloudml_job")',
            f'resource.labels.job_id="{job_id}"',
        ]
        if task_name:
            conditions.append(
                f'(resource.labels.task_name="{task_name}" OR labels.task_name="{task_name}")'
            )
        if since:
            conditions.append(f'timestamp>="{since}"')
        body: dict[str, Any] = {
            "resourceNames": [f"projects/{self._project_id}"],
            "filter": " AND ".join(conditions),
            "orderBy": "timestamp desc" if newest_first else "timestamp asc",
            "pageSize": page_size,
        }
        while True:
            request = self._client.api.entries().list(body=body)
            answer = self._client.execute(request, doing)
            try:
                entries = [LogEntry.of(entry) for entry in answer.get("entries", [])]
            except (AttributeError, TypeError) as error:
                raise TransientServiceError(
                    f"{doing}: the answer is no list of entries."
                ) from error
            yield from entries
            if not answer.get("nextPageToken"):
                return
            found += len(entries)
            if time.monotonic() > until:
                if found:
                    return
                raise TransientServiceError(f"{doing}: nothing found within {TAIL_LIMIT:.0f} s.")
            body = {**body, "pageToken": answer["nextPageToken"]}
