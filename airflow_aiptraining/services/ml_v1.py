"""AI Platform Training: the verbs of ``projects.jobs`` of the ML v1 API.

The embedded service is an ML v1 endpoint, so it is reached by this class as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any

from google.auth.credentials import Credentials

from airflow_aiptraining.exceptions import TransientServiceError
from airflow_aiptraining.services.http import TIMEOUT, ApiClient
from airflow_aiptraining.services.logs import TAIL_TIMEOUT, LogEntry, LogReader

#: The API's largest page.  Source: ML v1 discovery document, ``projects.jobs.list``.
PAGE_SIZE = 100


class MLv1Service:
    """One project at one ML v1 endpoint.

    :param project_id: whose jobs.
    :param credentials: of the connection, impersonation included.
    :param api_endpoint: URL; empty for Google's own.
    :param logging_endpoint: URL; empty for Google's own.
    :param timeout: seconds for one call.
    """

    def __init__(
        self,
        project_id: str,
        credentials: Credentials,
        *,
        api_endpoint: str = "",
        logging_endpoint: str = "",
        timeout: float = TIMEOUT,
    ) -> None:
        self.project_id = project_id
        self.api_endpoint = api_endpoint
        self._logging_endpoint = logging_endpoint
        self._credentials = credentials
        self._timeout = timeout
        self._client = ApiClient(
            "ml", "v1", credentials, api_endpoint=api_endpoint, timeout=timeout
        )

    @cached_property
    def _jobs(self) -> Any:
        # Made anew it costs more than a request does.
        return self._client.api.projects().jobs()

    def _name(self, job_id: str) -> str:
        return f"projects/{self.project_id}/jobs/{job_id}"

    def _doing(self, what: str) -> str:
        where = self.api_endpoint or "ml.googleapis.com"
        return f"{what} (project {self.project_id!r} at {where})"

    def create_job(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Submit a job; return the Job resource.

        :param body: ``jobId``, ``labels`` and ``trainingInput`` in wire form.
        :raises JobExistsError: the id was used before.
        :raises TransientServiceError: the answer is lost; the job may exist all the same.
        """
        request = self._jobs.create(parent=f"projects/{self.project_id}", body=dict(body))
        return self._job(request, body["jobId"], self._doing(f"Creating job {body['jobId']!r}"))

    def get_job(self, job_id: str) -> dict[str, Any]:
        """Return the Job resource.

        :raises JobNotFoundError: there is none of that id.
        """
        request = self._jobs.get(name=self._name(job_id))
        return self._job(request, job_id, self._doing(f"Reading job {job_id!r}"))

    def _job(self, request: Any, job_id: str, doing: str) -> dict[str, Any]:
        answer = self._client.execute(request, doing)
        if answer.get("jobId") != job_id:
            raise TransientServiceError(f"{doing}: the answer isn't that job.")
        return answer

    def list_jobs(self, filter: str = "", limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the project's jobs, page by page.

        :param filter: in the API's grammar, e.g. ``jobId:census* AND state=RUNNING``.
        :param limit: at most so many.
        """
        return islice(self._pages(filter, min(limit or PAGE_SIZE, PAGE_SIZE)), limit)

    def list_page(
        self,
        filter: str = "",
        page_token: str = "",
        *,
        page_size: int = PAGE_SIZE,
        fields: str = "",
    ) -> tuple[list[dict[str, Any]], str]:
        """Return one page of the project's jobs, and the token of the next; empty after the last.

        One request, for those who count them.

        :param filter: in the API's grammar; the same for all pages of a list.
        :param page_token: of this page; empty for the first.
        :param page_size: at most so many jobs; the service may give fewer.
        :param fields: parts of the jobs, e.g. ``jobId,state``; empty for all.  Source: the
            discovery document's parameter ``fields``, which every method has.
        :raises ServiceError: see :mod:`airflow_aiptraining.services.errors`.
        """
        request = self._jobs.list(
            parent=f"projects/{self.project_id}",
            filter=filter or None,
            pageSize=page_size,
            pageToken=page_token or None,
            fields=f"jobs({fields}),nextPageToken" if fields else None,
        )
        page = self._client.execute(request, self._doing("Listing jobs"))
        jobs = page.get("jobs", [])
        if (
            "error" in page
            or not isinstance(jobs, list)
            or not all(isinstance(job, dict) for job in jobs)
        ):
            raise TransientServiceError(
                f"{self._doing('Listing jobs')}: the answer is no list of jobs."
            )
        return jobs, str(page.get("nextPageToken") or "")

    def _pages(self, filter: str, page_size: int) -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            jobs, token = self.list_page(filter, token, page_size=page_size)
            yield from jobs
            if not token:
                return

    def cancel_job(self, job_id: str) -> None:
        """Ask the service to cancel a job.  It then is CANCELLING for a while.

        Cancelling a job that has ended is refused with :class:`ServiceError`, status 400.
        """
        request = self._jobs.cancel(name=self._name(job_id), body={})
        self._client.execute(request, self._doing(f"Cancelling job {job_id!r}"))

    def log_entries(
        self,
        job_id: str,
        *,
        task_name: str = "",
        since: str = "",
        newest_first: bool = False,
        page_size: int = 1000,
    ) -> Iterator[LogEntry]:
        """Yield a job's log entries; see :meth:`LogReader.entries`."""
        reader = self._log_tail if newest_first else self._log
        return reader.entries(
            job_id,
            task_name=task_name,
            since=since,
            newest_first=newest_first,
            page_size=page_size,
        )

    # Made anew they cost more than a request does, and who follows a log asks often.
    @cached_property
    def _log(self) -> LogReader:
        return self._log_reader(self._timeout)

    @cached_property
    def _log_tail(self) -> LogReader:
        return self._log_reader(min(self._timeout, TAIL_TIMEOUT))

    def _log_reader(self, timeout: float) -> LogReader:
        return LogReader(
            self.project_id,
            self._credentials,
            logging_endpoint=self._logging_endpoint,
            timeout=timeout,
        )
