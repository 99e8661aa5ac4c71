"""The routes of ML v1: jobs, and a plain word about everything else.

Source: ML v1 discovery, revision 20251213; error wordings as public logs of the service show them.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.exceptions import InvalidJobError
from airflow_aiptraining.local import filters
from airflow_aiptraining.local.errors import ApiError
from airflow_aiptraining.local.job_checks import (
    asked_runtime,
    check_size,
    check_storage,
    refuse_unsupported,
)
from airflow_aiptraining.local.job_store import (
    IllegalTransitionError,
    Job,
    JobExistsAlreadyError,
    JobStore,
    StaleEtagError,
)
from airflow_aiptraining.local.object_store import ObjectStore
from airflow_aiptraining.local.runtimes import Runtimes
from airflow_aiptraining.local.scheduler import Scheduler

DEFAULT_PAGE, LARGEST_PAGE = 20, 100
CANCELLED_BY_USER = "The job was cancelled by the user."

_ANY = ["GET", "POST", "PATCH", "PUT", "DELETE"]
_INPUT_PREFIX = "training_input."
_TIME_FIELDS = frozenset({"createTime", "startTime", "endTime"})
_UNIMPLEMENTED = (
    # (path, what it is)
    ("/v1/projects/{project}/models{rest:path}", "models and versions"),
    ("/v1/projects/{project}/operations{rest:path}", "long-running operations"),
    ("/v1/projects/{project}/locations{rest:path}", "locations, studies and trials"),
    ("/v1/projects/{project}:predict", "prediction"),
    ("/v1/projects/{project}:explain", "explanation"),
    ("/v1/projects/{project}/jobs/{job_id}:getIamPolicy", "access policies"),
    ("/v1/projects/{project}/jobs/{job_id}:setIamPolicy", "access policies"),
    ("/v1/projects/{project}/jobs/{job_id}:testIamPermissions", "access policies"),
)


def routes(
    store: JobStore,
    scheduler: Scheduler,
    objects: ObjectStore,
    *,
    runtimes: Runtimes,
    max_replicas: int,
) -> list[BaseRoute]:
    """Return the routes of ML v1; this table is the list of what is supported."""
    api = _Jobs(store, scheduler, objects, runtimes, max_replicas)
    table: list[BaseRoute] = [
        Route("/v1/projects/{project}:getConfig", _get_config, methods=["GET"]),
        Route("/v1/projects/{project}/jobs", api.create, methods=["POST"]),
        Route("/v1/projects/{project}/jobs", api.list, methods=["GET"]),
        Route("/v1/projects/{project}/jobs/{job_id}:cancel", api.cancel, methods=["POST"]),
    ]
    table += [Route(path, _unimplemented(what), methods=_ANY) for path, what in _UNIMPLEMENTED]
    table += [
        Route("/v1/projects/{project}/jobs/{job_id}", api.get, methods=["GET"]),
        Route("/v1/projects/{project}/jobs/{job_id}", api.patch, methods=["PATCH"]),
        # Nothing else may take such a path for a bucket's.
        Route("/v1/{rest:path}", _no_method, methods=_ANY),
    ]
    return table


def resource(job: Job, position: int | None = None) -> dict[str, Any]:
    """Return a job as the API answers it; what has no value is left out.

    :param position: its place in the queue, if it is QUEUED.
    """
    fields = {
        "jobId": job.job_id,
        # Empty lists are no values in the API's JSON.
        "trainingInput": {k: v for k, v in job.input.items() if v not in ("", [], {})},
        "createTime": _time(job.create_time),
        "startTime": _time(job.start_time),
        "endTime": _time(job.end_time),
        "state": job.state.value,
        "errorMessage": job.error_message,
        "labels": job.labels,
        "etag": job.etag,
        "trainingOutput": job.output,
        "jobPosition": str(position) if position else None,
    }
    return {name: value for name, value in fields.items() if value}


class _Jobs:
    """Handlers of ``projects.jobs``."""

    def __init__(
        self,
        store: JobStore,
        scheduler: Scheduler,
        objects: ObjectStore,
        runtimes: Runtimes,
        max_replicas: int,
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._objects = objects
        self._max_replicas = max_replicas
        self._runtimes = runtimes

    async def create(self, request: Request) -> Response:
        # The models take a moment to load, and are wanted by nobody before the first job.
        from airflow_aiptraining.core.job import wire_job

        project = request.path_params["project"]
        body = await _json_body(request)
        refuse_unsupported(body)
        wrong_pair = self._runtimes.problem(*asked_runtime(body))
        problems = [("runtime_version", wrong_pair)] if wrong_pair else []
        job: dict[str, Any] = {}
        try:
            job = wire_job(body, default_runtime=True)
        except InvalidJobError as error:
            named = [(_field_name(v.path), v.message) for v in error.violations]
            # A pair that never was is told once, in the real service's words.
            problems += [p for p in named if not wrong_pair or p[0] != "python_version"]
        if problems:
            raise _violations(problems)
        job_input = job["trainingInput"]
        if too_large := check_size(job_input, self._max_replicas):
            raise _violations([(_field_name(f"trainingInput.{path}"), t) for path, t in too_large])
        problems = await asyncio.to_thread(check_storage, job_input, self._objects)
        if problems:
            raise _violations(problems, "FAILED_PRECONDITION")
        try:
            created = self._store.create(
                project,
                job["jobId"],
                labels=job.get("labels") or {},
                training_input=job_input,
                priority=(job_input.get("scheduling") or {}).get("priority") or 0,
            )
        except JobExistsAlreadyError as error:
            text = "A job with this id already exists."
            raise ApiError(
                409,
                "ALREADY_EXISTS",
                f"Field: job.job_id Error: {text}",
                [("job.job_id", text)],
            ) from error
        # Answered as created: the queue may have given it a place by now.
        answer = resource(created, self._store.position(created))
        self._scheduler.added(created)
        return JSONResponse(answer)

    async def get(self, request: Request) -> Response:
        return JSONResponse(self._resource(self._find(request)))

    async def list(self, request: Request) -> Response:
        project, query = request.path_params["project"], request.query_params
        text = query.get("filter", "")
        node = _read_filter(text)
        size = _page_size(query.get("pageSize"))
        before = _read_token(query["pageToken"], text) if query.get("pageToken") else None
        found = self._store.search(
            project,
            states=filters.required_values(node, "state"),
            job_ids=filters.required_values(node, "jobId"),
            before=before,
        )
        wanted = (job for job in found if filters.matches(node, _lookup(job), _compare))
        jobs = list(itertools.islice(wanted, size + 1))
        answer: dict[str, Any] = {}
        if jobs:
            answer["jobs"] = [self._resource(job) for job in jobs[:size]]
        if len(jobs) > size:
            answer["nextPageToken"] = _token(jobs[size - 1].number, text)
        return JSONResponse(answer)

    async def patch(self, request: Request) -> Response:
        job = self._find(request)
        mask = request.query_params.get("updateMask", "")
        paths = {path.strip() for path in mask.split(",") if path.strip()}
        if not paths or not paths <= {"labels", "etag"}:
            raise _violations(
                [("update_mask", f"'{mask}': only 'labels' and 'labels,etag' can be updated.")]
            )
        body = await _json_body(request)
        labels, etag = body.get("labels") or {}, body.get("etag")
        from airflow_aiptraining.core.job import check_job

        problems = [v for v in check_job({"labels": labels}, complete=False) if v.path]
        if problems:
            raise _violations([(_field_name(v.path), v.message) for v in problems])
        if "etag" in paths and not etag:
            raise _violations([("job.etag", "It is in updateMask, so the job needs one.")])
        try:
            changed = self._store.set_labels(
                job.uid,
                labels if "labels" in paths else job.labels,
                etag=etag if "etag" in paths else None,
            )
        except StaleEtagError as error:
            raise ApiError(
                409,
                "ABORTED",
                f"The etag {etag} of job {job.job_id} is not its present one: somebody changed "
                "the job since you read it. Get it again and repeat the change.",
            ) from error
        return JSONResponse(self._resource(changed))

    async def cancel(self, request: Request) -> Response:
        job = self._find(request)
        try:
            self._scheduler.cancel(job.uid, CANCELLED_BY_USER)
        except IllegalTransitionError as error:
            # A job that is on its way to CANCELLED is where the caller wants it.
            if error.state is not JobState.CANCELLING:
                text = f"The job {job.job_id} is {error.state} and can't be cancelled."
                raise _violations([("name", text)], "FAILED_PRECONDITION") from error
        return JSONResponse({})

    def _find(self, request: Request) -> Job:
        project, job_id = request.path_params["project"], request.path_params["job_id"]
        job = self._store.get(project, job_id)
        if job is None:
            text = f"The specified job {job_id} was not found in project {project}."
            raise ApiError(404, "NOT_FOUND", f"Field: name Error: {text}", [("name", text)])
        return job

    def _resource(self, job: Job) -> dict[str, Any]:
        is_queued = job.state is JobState.QUEUED
        return resource(job, self._store.position(job) if is_queued else None)


async def _get_config(request: Request) -> Response:
    project = request.path_params["project"]
    return JSONResponse(
        {
            "serviceAccount": f"aiptraining-local@{project}.iam.gserviceaccount.com",
            "serviceAccountProject": "0",
            "config": {},
        }
    )


def _unimplemented(what: str) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        raise ApiError(
            501,
            "UNIMPLEMENTED",
            f"The embedded service runs training jobs only: {what} of ML v1 are not part of it.",
        )

    return answer


async def _no_method(request: Request) -> Response:
    raise ApiError(404, "NOT_FOUND", f"ML v1 has no method at {request.method} {request.url.path}.")


def _violations(
    violations: Sequence[tuple[str, str]], status_name: str = "INVALID_ARGUMENT"
) -> ApiError:
    message = "; ".join(f"Field: {field} Error: {text}" for field, text in violations)
    return ApiError(400, status_name, message, violations)


def _field_name(path: str) -> str:
    """Return a field as the API's errors name it: ``trainingInput.jobDir`` → ``job_dir``."""
    name = re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), path)
    if name == "job_id":
        return "job.job_id"
    return name.removeprefix(_INPUT_PREFIX) or "job"


def _time(seconds: float | None) -> str | None:
    """Return RFC 3339.

    The real service cuts to seconds; jobs here are so short that two attempts, and the files that
    they write, must be told apart within one.
    """
    if seconds is None:
        return None
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def _lookup(job: Job) -> Callable[[str], str | None]:
    whole = resource(job)

    def look(path: str) -> str | None:
        found: Any = whole
        parts = path.split(".")
        if parts[0] == "labels":
            parts = ["labels", ".".join(parts[1:])]
        for part in parts:
            if not isinstance(found, dict) or part not in found:
                return None
            found = found[part]
        if isinstance(found, bool):
            return str(found).lower()
        return found if isinstance(found, str) else json.dumps(found)

    return look


def _compare(found: str, asked: str) -> int | None:
    """Order two values: as numbers if both are, else as texts (times are of one form)."""
    try:
        one, other = float(found), float(asked)
    except ValueError:
        return (found > asked) - (found < asked)
    return (one > other) - (one < other)


def _read_filter(text: str) -> filters.Node:
    def full_time(value: str) -> str:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        # Not strftime: it writes the year 1 without zeros, and texts are compared.
        return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    try:
        node = filters.parse(text)
        for field in _TIME_FIELDS:
            node = filters.replace_values(node, field, full_time)
    # OverflowError: a time that is none in UTC, before the year 1 or after 9999.
    except (ValueError, OverflowError) as error:
        raise _violations([("filter", f"Can't be read: {error}.")]) from error
    return node


def _page_size(text: str | None) -> int:
    size = int(text) if text and re.fullmatch(r"-?\d{1,9}", text) else None
    if not text or size == 0:
        return DEFAULT_PAGE
    if size is None or size < 0:
        raise _violations([("page_size", f"'{text}' is not a number from 1 to {LARGEST_PAGE}.")])
    return min(size, LARGEST_PAGE)


def _token(number: int, text: str) -> str:
    """Return a page token: the last job's number holds whatever is created or ends meanwhile."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return base64.urlsafe_b64encode(f"{number}:{digest}".encode()).decode()


def _read_token(token: str, text: str) -> int:
    try:
        number = int(base64.urlsafe_b64decode(token).decode().partition(":")[0])
    except ValueError as error:
        raise _violations([("page_token", "It is not one that this service gave.")]) from error
    if _token(number, text) != token:
        raise _violations([("page_token", "It belongs to a list call with another filter.")])
    return number


async def _json_body(request: Request) -> Mapping[str, Any]:
    try:
        body = json.loads(await request.body() or b"{}")
    except RecursionError as error:
        raise ApiError(
            400, "INVALID_ARGUMENT", "Invalid JSON payload received. It is nested too deeply."
        ) from error
    except ValueError as error:
        raise ApiError(
            400, "INVALID_ARGUMENT", f"Invalid JSON payload received. {error}"
        ) from error
    if not isinstance(body, dict):
        raise ApiError(
            400, "INVALID_ARGUMENT", "Invalid JSON payload received. An object is expected."
        )
    return body
