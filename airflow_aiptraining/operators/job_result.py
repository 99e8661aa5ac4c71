"""What a task says of a job that has ended: a small result, or an error with its cause."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from airflow_aiptraining.core.job_ids import in_words
from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.exceptions import JobCancelledError, JobFailedError, ServiceError
from airflow_aiptraining.services.ml_v1 import MLv1Service

#: Lines of the master's log in a failure.
TAIL = 20
_MAX_LINE = 400


def job_result(job: Mapping[str, Any], project_id: str) -> dict[str, Any]:
    """Return the task's XCom result: small, and JSON.

    :return: ``job_id``, ``project_id``, ``state``, ``create_time``, ``start_time``, ``end_time``
        (RFC 3339), ``consumed_ml_units`` (``None`` where the service doesn't say),
        ``price_estimate`` (``{"usd", "note"}`` or ``None``), ``best_trial`` (of a tuning job) and
        ``job_dir``.
    """
    from airflow_aiptraining.core.machines import price_estimate

    training_input = job.get("trainingInput", {})
    output = job.get("trainingOutput", {})
    seconds = _machine_seconds(job, output.get("trials") or [])
    return {
        "job_id": job.get("jobId"),
        "project_id": project_id,
        "state": job.get("state"),
        "create_time": job.get("createTime"),
        "start_time": job.get("startTime"),
        "end_time": job.get("endTime"),
        "consumed_ml_units": output.get("consumedMLUnits"),
        "price_estimate": None if seconds is None else price_estimate(training_input, seconds),
        "best_trial": _best_trial(training_input, output),
        "job_dir": training_input.get("jobDir"),
    }


def _machine_seconds(job: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> float | None:
    """Return how long the job's machines ran; trials have machines of their own, side by side."""
    runs = [_seconds(run) for run in (trials or [job])]
    return None if None in runs else sum(run for run in runs if run is not None)


def _seconds(run: Mapping[str, Any]) -> float | None:
    start, end = run.get("startTime"), run.get("endTime")
    try:
        return (
            datetime.fromisoformat(str(end)) - datetime.fromisoformat(str(start))
        ).total_seconds()
    except (TypeError, ValueError):
        return None


def _best_trial(
    training_input: Mapping[str, Any], output: Mapping[str, Any]
) -> dict[str, Any] | None:
    from airflow_aiptraining.core.trials import best_trial

    goal = (training_input.get("hyperparameters") or {}).get("goal") or "MAXIMIZE"
    trial = best_trial(output.get("trials") or [], goal)
    if trial is None:
        return None
    kept = ("trialId", "hyperparameters", "finalMetric")
    return {key: trial[key] for key in kept if key in trial}


def log_tail(service: MLv1Service, job_id: str, lines: int = TAIL) -> list[str]:
    """Return the last lines of the master's log, oldest first.

    A log that can't be read never hides the failure that it was read for.
    """
    try:
        newest = islice(
            service.log_entries(
                job_id, task_name="master-replica-0", newest_first=True, page_size=lines
            ),
            lines,
        )
        return [printable(entry.message[:_MAX_LINE]) for entry in newest][::-1]
    except ServiceError as error:
        return [f"(the log can't be read: {error})"]


def printable(text: str) -> str:
    """Return a remote text without control characters: it may not steer whoever reads a log."""
    return "".join(char if char.isprintable() or char in "\t\n" else "\ufffd" for char in text)


def failure(
    job: Mapping[str, Any], service: MLv1Service, service_name: str, url: str, *, cure: str
) -> JobFailedError:
    """Return the error for a job that ended without success.

    :param job: FAILED or CANCELLED.
    :param url: where a person sees the job.
    :param cure: what to do about one that FAILED.
    """
    job_id = str(job.get("jobId"))
    state = JobState.of(job)
    reason = printable(str(job.get("errorMessage") or ""))
    tail = log_tail(service, job_id)
    parts = [
        f"Training job {in_words(job_id)} in project {service.project_id!r} on {service_name} "
        f"ended {state}{f': {reason.strip()}' if reason else '.'}",
        _why_cancelled(job) if state is JobState.CANCELLED else cure,
    ]
    if any("unrecognized arguments" in line and "--job-dir" in line for line in tail):
        parts.append(
            "The trainer doesn't know --job-dir: the service passes it to every job that has a "
            "job_dir. Add the argument to the trainer's parser, or take job_dir out."
        )
    if tail:
        parts.append("Last lines of the master's log:\n" + "\n".join(f"  {x}" for x in tail))
    parts.append(f"Job: {url}")
    kind = JobCancelledError if state is JobState.CANCELLED else JobFailedError
    return kind("\n".join(parts), job_id=job_id, state=str(state), error_message=reason)


def _why_cancelled(job: Mapping[str, Any]) -> str:
    if waited_too_long(job):
        return "It waited longer than scheduling.maxWaitTime for machines; a retry asks again."
    if _was_stopped_at(job, "maxrunningtime"):
        return (
            "It ran longer than scheduling.maxRunningTime allows: raise that, or the operator's "
            "timeout, then clear the task to train again."
        )
    return "It was cancelled outside Airflow; clear the task to train again."


def waited_too_long(job: Mapping[str, Any]) -> bool:
    """Tell whether the service cancelled the job because no machine was free in time.

    Such a job never started; one that somebody cancelled in the queue has no such message.
    """
    return not job.get("startTime") and _was_stopped_at(job, "maxwaittime")


def ran_too_long(job: Mapping[str, Any], timeout: float) -> bool:
    """Tell whether the service cancelled the job at a limit that a task's timeout gave it.

    :param timeout: seconds.
    """
    limit = job.get("trainingInput", {}).get("scheduling", {}).get("maxRunningTime")
    return limit == running_time_of(timeout) and _was_stopped_at(job, "maxrunningtime")


def running_time_of(timeout: float) -> str:
    """Return the ``maxRunningTime`` that a task's timeout means: whole seconds, rounded up."""
    return f"{math.ceil(timeout)}s"


def _was_stopped_at(job: Mapping[str, Any], limit: str) -> bool:
    words = str(job.get("errorMessage") or "").lower().replace("_", "")
    return limit in words
