"""Waiting for a job in the worker, while a task isn't deferred."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any

from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.exceptions import ServiceError, TransientServiceError
from airflow_aiptraining.services.ml_v1 import MLv1Service
from airflow_aiptraining.services.retries import PATIENCE, patiently

log = logging.getLogger(__name__)

#: A cancel whose answer is lost is sent again for so many seconds at least: a worker that is being
#: killed has five.
CANCEL_PATIENCE = 3.0
#: A cancelled job gets so many seconds to end before the task stops looking.
CANCEL_LIMIT = 120.0


def wait_in_worker(
    service: MLv1Service,
    job: dict[str, Any],
    *,
    poll_interval: float,
    deadline: float | None,
    is_woken: Callable[[], bool],
) -> dict[str, Any]:
    """Return the job when it has ended, its deadline has passed, or ``is_woken`` says so.

    :param job: as last read.
    :param poll_interval: seconds between two looks.
    :param deadline: epoch seconds; ``None`` for none.
    :param is_woken: asked about every half second.
    :raises TransientServiceError: no answer for about five minutes; the job goes on.
    """
    state, job_id = JobState.of(job), job["jobId"]
    log.info("Job %s is %s.", job_id, job.get("state"))
    while not state.is_terminal:
        until = time.time() + poll_interval * random.uniform(0.9, 1.1)  # noqa: S311 — spreads polls
        until = min(until, deadline) if deadline is not None else until
        while time.time() < until:
            if is_woken():
                return job
            time.sleep(max(0.0, min(0.5, until - time.time())))
        job = patiently(lambda: service.get_job(job_id), patience=PATIENCE)
        if JobState.of(job) is not state:
            state = JobState.of(job)
            log.info("Job %s is %s.", job_id, job.get("state"))
        if deadline is not None and time.time() >= deadline:
            return job
    return job


def cancel_and_wait(
    service: MLv1Service, job_id: str, *, seconds: float, patience: float = CANCEL_PATIENCE
) -> dict[str, Any]:
    """Cancel a job and return it, ended if it ends within so many seconds.

    Cancelling a job that has ended in the meantime is no error.

    :param patience: seconds to bear with a service that doesn't answer; at least ``seconds``.
    """
    until = time.monotonic() + seconds
    patience = min(max(seconds, patience), PATIENCE)
    try:
        patiently(lambda: service.cancel_job(job_id), patience=patience)
    except TransientServiceError:
        raise
    except ServiceError as error:
        if error.status != 400:
            raise
    while True:
        job = patiently(lambda: service.get_job(job_id), patience=patience)
        if JobState.of(job).is_terminal or time.monotonic() > until:
            return job
        time.sleep(1.0)
