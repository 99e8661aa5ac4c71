"""Waits for one training job."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.exceptions import AIPTrainingError, TransientServiceError
from airflow_aiptraining.triggers.given_up import task_was_given_up
from airflow_aiptraining.triggers.watch import JobWatch, WatchKey

#: ``on_kill`` must be done before Airflow's own limit (30 s).
ON_KILL_LIMIT = 25.0


class AIPTrainingJobTrigger(BaseTrigger):
    """Fires one event when a training job has ended, or its deadline has passed.

    The event is ``{"event": ..., "job_id", "project_id", "service", "api_endpoint", "state"}`` with
    ``event`` one of ``ended`` (terminal state), ``timeout`` (the deadline passed; the job goes on
    until somebody cancels it) and ``error`` (with ``message``: the job can't be read).

    :param job_id: the attempt to wait for.
    :param project_id: where it runs.
    :param service: ``local``, ``ml_v1`` ...
    :param api_endpoint: URL of the service that it was sent to; empty for Google's own.
    :param gcp_conn_id: the connection to read it with.
    :param impersonation_chain: service accounts to impersonate.
    :param region: of the job, where the service is regional.
    :param poll_interval: seconds between two looks.
    :param deadline: epoch seconds; ``None`` for none.
    :param cancel_on_kill: cancel the job when a person gives up the deferred task.
    """

    def __init__(
        self,
        job_id: str,
        project_id: str,
        service: str,
        api_endpoint: str,
        gcp_conn_id: str,
        impersonation_chain: str | Sequence[str] | None = None,
        region: str = "",
        poll_interval: float = 30.0,
        deadline: float | None = None,
        cancel_on_kill: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job_id = job_id
        self.project_id = project_id
        self.service = service
        self.api_endpoint = api_endpoint
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        self.region = region
        self.poll_interval = poll_interval
        self.deadline = deadline
        self.cancel_on_kill = cancel_on_kill

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and everything that :meth:`run` needs."""
        names = (
            "job_id",
            "project_id",
            "service",
            "api_endpoint",
            "gcp_conn_id",
            "impersonation_chain",
            "region",
            "poll_interval",
            "deadline",
            "cancel_on_kill",
        )
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in names}

    def _watch_key(self) -> WatchKey:
        chain = self.impersonation_chain or ()
        return WatchKey(
            gcp_conn_id=self.gcp_conn_id,
            impersonation_chain=(chain,) if isinstance(chain, str) else tuple(chain),
            service=self.service,
            api_endpoint=self.api_endpoint,
            project_id=self.project_id,
            region=self.region,
        )

    def _event(self, event: str, **facts: Any) -> TriggerEvent:
        place = {
            "job_id": self.job_id,
            "project_id": self.project_id,
            "service": self.service,
            "api_endpoint": self.api_endpoint,
        }
        return TriggerEvent({"event": event, **place, **facts})  # type: ignore[no-untyped-call]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event."""
        async with JobWatch.shared(self._watch_key()) as watch:
            yield await self._wait(watch)

    async def _wait(self, watch: JobWatch) -> TriggerEvent:
        state: JobState | None = None
        failures, away_since = 0, 0.0
        while True:
            pause = self.poll_interval * random.uniform(0.9, 1.1)  # noqa: S311 — spreads polls
            try:
                job = await watch.get_job(self.job_id)
            except TransientServiceError as error:
                failures += 1
                away_since = away_since or time.time()
                since = datetime.fromtimestamp(away_since, UTC).strftime("%H:%M:%S UTC")
                pause = max(pause, _backoff(error, failures))
                self.log.warning(
                    "Job %s: the service has not answered since %s; the job itself goes on. %s",
                    self.job_id,
                    since,
                    error,
                )
            except AIPTrainingError as error:
                return self._event("error", state=str(state or ""), message=str(error))
            else:
                if failures:
                    self.log.info("Job %s: the service answers again.", self.job_id)
                failures, away_since = 0, 0.0
                now = JobState.of(job)
                if now is not state:
                    self.log.info("Job %s is %s.", self.job_id, job.get("state", now))
                    state = now
                if now.is_terminal:
                    return self._event("ended", state=str(now))
            if self.deadline is not None:
                left = self.deadline - time.time()
                if left <= 0:
                    return self._event("timeout", state=str(state or ""))
                pause = min(pause, left)
            await asyncio.sleep(pause)

    async def on_kill(self) -> None:
        """Cancel the job if Airflow has given up the task.

        Airflow cancels this coroutine again about every second, so the work runs in a task of its
        own, shielded.
        """
        work = asyncio.ensure_future(self._cancel_if_given_up())
        until = time.monotonic() + ON_KILL_LIMIT
        while not work.done() and time.monotonic() < until:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({work}, timeout=until - time.monotonic())
        if work.done() and not work.cancelled() and (error := work.exception()):
            self.log.warning("Job %s was not cancelled: %s", self.job_id, error)

    async def _cancel_if_given_up(self) -> None:
        ti = self.task_instance
        if not self.cancel_on_kill or ti is None:
            return
        given_up = await asyncio.to_thread(
            task_was_given_up, ti.dag_id, ti.run_id, ti.task_id, ti.map_index
        )
        if not given_up:
            self.log.info("Job %s goes on: its task was not given up.", self.job_id)
            return
        async with JobWatch.shared(self._watch_key()) as watch:
            await watch.cancel_job(self.job_id)
        self.log.info("Job %s is being cancelled: its task was given up.", self.job_id)


def _backoff(error: TransientServiceError, failures: int) -> float:
    """Return the seconds to wait after so many calls in a row that weren't answered."""
    from airflow_aiptraining.services.retries import pause_after

    return pause_after(error, failures)
