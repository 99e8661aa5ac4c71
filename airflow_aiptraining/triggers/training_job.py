"""Waits for one training job."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowConfigException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.exceptions import TransientServiceError
from airflow_aiptraining.triggers import deferral
from airflow_aiptraining.triggers.budget import DEFAULT_BUDGET
from airflow_aiptraining.triggers.given_up import task_was_given_up
from airflow_aiptraining.triggers.service_calls import backoff
from airflow_aiptraining.triggers.waiter import Trouble
from airflow_aiptraining.triggers.watch import JobWatch, WatchKey

log = logging.getLogger(__name__)

#: ``on_kill`` must be done before Airflow's own limit (30 s) ...
ON_KILL_LIMIT = 25.0
#: ... but what it began goes on so long, in seconds: the first question that a triggerer asks
#: Airflow takes 10 s, and took 34 s on a busy machine (measured).
CANCELLING_LIMIT = 600.0
#: Keeps what goes on from being collected.
_cancelling: set[asyncio.Future[None]] = set()


class AIPTrainingJobTrigger(BaseTrigger):
    """Fires one event when a training job has ended, or its deadline has passed.

    The event is ``{"event": ..., "job_id", "project_id", "service", "api_endpoint", "state"}`` with
    ``event`` one of ``ended`` (terminal state), ``timeout`` (the deadline passed; the job goes on
    until somebody cancels it) and ``error`` (with ``message``: the job can't be read, or isn't
    there, for longer than a blip lasts).

    :param job_id: the attempt to wait for.
    :param project_id: where it runs.
    :param service: ``local``, ``ml_v1`` ...
    :param api_endpoint: URL of the service that it was sent to; empty for Google's own.
    :param gcp_conn_id: the connection to read it with.
    :param impersonation_chain: service accounts to impersonate.
    :param region: of the job, where the service is regional.
    :param poll_interval: seconds between two looks; longer where the process's request budget
        (``[aiptraining] request_budget``) wants it.
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
        earliest = time.monotonic() + deferral.SHORTEST_DEFERRAL
        async with JobWatch.shared(self._watch_key(), _request_budget()) as watch:
            event = await self._wait(watch)
        # Outside: whoever takes one event and drops the generator leaves nothing behind.
        await asyncio.sleep(max(0.0, earliest - time.monotonic()))
        yield event

    async def _wait(self, watch: JobWatch) -> TriggerEvent:
        waiter = watch.join(self.job_id, self.poll_interval, self.deadline)
        state, was_away, interval = "", False, self.poll_interval
        try:
            while True:
                await waiter.news()
                if waiter.state != state:
                    state = waiter.state
                    self._log_state(state)
                if waiter.error:
                    return self._event("error", state=_known(state), message=waiter.error)
                if waiter.is_over:
                    return self._event("ended", state=_known(state))
                if waiter.trouble is not None:
                    was_away = True
                    self._log_trouble(waiter.trouble, waiter.since)
                elif was_away:
                    was_away = False
                    self.log.info("Job %s: the service answers again.", self.job_id)
                if self.deadline is not None and time.time() >= self.deadline:
                    return self._event("timeout", state=_known(state))
                if watch.interval_held > 1.2 * interval:
                    interval = watch.interval_held
                    self.log.info(
                        "Job %s is looked at every %.0f s, not every %.0f s: many jobs share "
                        "[aiptraining] request_budget.",
                        self.job_id,
                        interval,
                        self.poll_interval,
                    )
        finally:
            watch.leave(waiter)

    def _log_state(self, state: str) -> None:
        self.log.info("Job %s is %s.", self.job_id, state)
        if state not in JobState.__members__:
            self.log.warning(
                "Job %s: this version doesn't know the state %s; it goes on waiting.",
                self.job_id,
                state,
            )

    def _log_trouble(self, trouble: Trouble, began: float) -> None:
        since = datetime.fromtimestamp(began, UTC).strftime("%H:%M:%S UTC")
        what = "the service has not answered" if trouble.is_away else "it can't be read"
        goes_on = "the job itself goes on" if trouble.is_away else "asking again for some minutes"
        self.log.warning(
            "Job %s: %s since %s; %s. %s", self.job_id, what, since, goes_on, trouble.message
        )

    async def on_kill(self) -> None:
        """Cancel the job if Airflow has given up the task.

        Airflow cancels this coroutine again about every second, so the work runs in a task of its
        own, shielded.
        """
        work = asyncio.ensure_future(asyncio.wait_for(self._cancel_if_given_up(), CANCELLING_LIMIT))
        _cancelling.add(work)
        work.add_done_callback(self._tell_end_of_cancelling)
        until = time.monotonic() + ON_KILL_LIMIT
        while not work.done() and time.monotonic() < until:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({work}, timeout=until - time.monotonic())
        if not work.done():
            self.log.warning(
                "Job %s: no answer in %.0f s; it is still asked for.", self.job_id, ON_KILL_LIMIT
            )

    def _tell_end_of_cancelling(self, work: asyncio.Future[None]) -> None:
        _cancelling.discard(work)
        if work.cancelled() or (error := work.exception()) is None:
            return
        why = "no answer" if isinstance(error, TimeoutError) else str(error)
        self.log.error(
            "Job %s was not cancelled: %s. If it runs on, the reaper will find it, or somebody "
            "cancels it.",
            self.job_id,
            why.rstrip("."),
        )

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
        async with JobWatch.shared(self._watch_key(), _request_budget()) as watch:
            await self._cancel(watch)
        self.log.info("Job %s is being cancelled: its task was given up.", self.job_id)

    async def _cancel(self, watch: JobWatch) -> None:
        """Ask until the service answers: nobody else will cancel this job soon."""
        failures = 0
        while True:
            try:
                return await watch.cancel_job(self.job_id)
            except TransientServiceError as error:
                failures += 1
                pause = backoff(error, failures)
                self.log.warning("%s Cancelling again in %.0f s.", error, pause)
            await asyncio.sleep(pause)


def _known(state: str) -> str:
    """Return a state as events name it: empty before the first look, else one that is known."""
    return str(JobState.of({"state": state})) if state else ""


def _request_budget() -> int:
    """Return ``[aiptraining] request_budget``, requests a minute."""
    try:
        return int(conf.getint("aiptraining", "request_budget", fallback=DEFAULT_BUDGET))
    except AirflowConfigException as error:
        log.warning("%s; the default of %d holds.", error, DEFAULT_BUDGET)
        return DEFAULT_BUDGET
