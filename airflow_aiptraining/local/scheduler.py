"""The queue: which job runs when, and the clocks that cancel jobs.

QUEUED jobs wait for places, one for each replica, by priority, then age.  A job that is PREPARING,
RUNNING or CANCELLING holds them.  One for which there aren't enough lets smaller ones pass for a
while; then they wait too, so that its turn comes.  One asyncio task drives each (``job_run.py``); a
cancel ends that task and another one ends the job's processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from airflow_aiptraining.core.cluster import replica_count
from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.local.job_folder import SERVICE_TASK, JobFolder
from airflow_aiptraining.local.job_run import JobRun
from airflow_aiptraining.local.job_store import UNFINISHED, IllegalTransitionError, Job, JobStore

log = logging.getLogger(__name__)

MAX_RUNNING_TIME = "604800s"
"""Default of ``scheduling.maxRunningTime``. Source: ML v1 discovery, revision 20251213."""

PATIENCE_SECONDS = 60.0
_LOOK_AHEAD = 20
"""Queued jobs that are looked at beyond the capacity, for some that fit."""

_DURATION = re.compile(r"(\d+(?:\.\d{1,9})?)s")


def default_capacity() -> int:
    """Return how many replicas run at once on this machine if nobody says."""
    return max(2, os.cpu_count() or 1)


class Scheduler:
    """Runs the jobs of a store.

    :param make_run: job's uid → what drives it.
    :param folder: job's uid → its folder.
    :param capacity: replicas that hold a place at the same time; a job with more runs when nothing
        else does.
    :param patience: seconds for which smaller jobs may pass one that doesn't fit.
    """

    def __init__(
        self,
        store: JobStore,
        make_run: Callable[[str], JobRun],
        folder: Callable[[str], JobFolder],
        *,
        capacity: int,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._store = store
        self._make_run = make_run
        self._folder = folder
        self._capacity = capacity
        self._patience = patience
        self._places: dict[str, int] = {}
        self._passed_since: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_running = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take up every unfinished job and run the queue; at the end leave replicas running."""
        self._is_running = True
        for job in self._store.in_states(*UNFINISHED):
            self._set_timer(job)
            if job.state is not JobState.QUEUED:
                self._drive(job.uid, replica_count(job.input))
        self._fill()
        try:
            yield
        finally:
            self._is_running = False
            for timer in self._timers.values():
                timer.cancel()
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    def added(self, job: Job) -> None:
        """Take note of a new job."""
        service = self._folder(job.uid).log(SERVICE_TASK)
        service.write("Validating job requirements...")
        service.write("Job creation request has been successfully validated.")
        service.write(f"Job {job.job_id} is queued.")
        self._set_timer(job)
        self._fill()

    def cancel(self, uid: str, reason: str) -> None:
        """Cancel a job; returns at once, the job is CANCELLING.

        :param reason: becomes its ``errorMessage``.
        :raises IllegalTransitionError: it has ended, or is being cancelled.
        """
        self._store.advance(uid, JobState.CANCELLING, error_message=reason)
        self._folder(uid).log(SERVICE_TASK).write(f"Job is being cancelled. {reason}", "W")
        self._clear_timer(uid)
        if task := self._tasks.get(uid):
            task.cancel()  # _driven goes on to end the processes
        else:
            self._drive(uid, 0)  # it was QUEUED: nothing of it runs

    async def cancel_all(self, reason: str) -> None:
        """Cancel every unfinished job and wait for their ends."""
        for job in self._store.in_states(*UNFINISHED):
            with contextlib.suppress(IllegalTransitionError):
                self.cancel(job.uid, reason)
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))
            await asyncio.sleep(0)  # their callbacks

    def _fill(self) -> None:
        """Give free places to the jobs that are next."""
        used = sum(self._places.values())
        if not self._is_running or used >= self._capacity:
            return
        now = time.monotonic()
        for job in self._store.in_states(JobState.QUEUED, limit=self._capacity + _LOOK_AHEAD):
            if job.uid in self._tasks:
                continue
            if used >= self._capacity:
                break
            needed = replica_count(job.input)
            if used and used + needed > self._capacity:
                if now - self._passed_since.setdefault(job.uid, now) >= self._patience:
                    break  # what is free is kept for it
                continue
            self._drive(job.uid, needed)
            used += needed

    def _drive(self, uid: str, places: int) -> None:
        self._places[uid] = places
        self._passed_since.pop(uid, None)
        task = asyncio.create_task(self._driven(uid), name=f"job {uid}")
        self._tasks[uid] = task
        task.add_done_callback(lambda _: self._drove(uid, task))

    def _drove(self, uid: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(uid, None)
        self._places.pop(uid, None)
        if not task.cancelled() and (error := task.exception()):
            log.error("Job %s stays as it is until the next start", uid, exc_info=error)
        if self._is_running:
            if self._store.get_by_uid(uid).state.is_terminal:
                self._clear_timer(uid)
            self._fill()

    async def _driven(self, uid: str) -> None:
        """Drive a job to its end, whichever it is."""
        run = self._make_run(uid)
        try:
            if self._store.get_by_uid(uid).state is not JobState.CANCELLING:
                await run.run(self._set_timer)
        except asyncio.CancelledError:
            if not self._is_running:
                raise
        except IllegalTransitionError:
            pass  # it lost the race against a cancel, which the store has
        except Exception as error:
            log.exception("Job %s", uid)
            self._crashed(uid, error)
            with contextlib.suppress(Exception):
                await run.end_crashed()
        if self._store.get_by_uid(uid).state is JobState.CANCELLING:
            await run.end_cancelled()

    def _crashed(self, uid: str, error: Exception) -> None:
        message = f"The embedded service failed: {type(error).__name__}: {error}"
        self._folder(uid).log(SERVICE_TASK).write(message, "E")
        with contextlib.suppress(IllegalTransitionError):
            self._store.advance(uid, JobState.FAILED, error_message=message)

    # --- clocks ---------------------------------------------------------------------------------

    def _set_timer(self, job: Job) -> None:
        """Set the clock that holds for the job's state, if one does."""
        self._clear_timer(job.uid)
        scheduling = job.input.get("scheduling") or {}
        if job.state is JobState.RUNNING and job.start_time is not None:
            # Starts anew with RUNNING: maxWaitTime never fires again.
            name, since = "maxRunningTime", job.start_time
            limit = scheduling.get(name) or MAX_RUNNING_TIME
        elif job.state in {JobState.QUEUED, JobState.PREPARING}:
            name, since = "maxWaitTime", job.create_time
            limit = scheduling.get(name)
        else:
            return
        if not limit:
            return
        seconds = duration(limit)
        reason = f"The job was cancelled: trainingInput.scheduling.{name} of {limit} passed " + (
            "while it ran." if name == "maxRunningTime" else "before it ran."
        )
        delay = max(0.0, since + seconds - time.time())
        self._timers[job.uid] = asyncio.get_running_loop().call_later(
            delay, self._time_is_up, job.uid, job.state is JobState.RUNNING, reason
        )

    def _time_is_up(self, uid: str, was_running: bool, reason: str) -> None:
        state = self._store.get_by_uid(uid).state
        if (state is JobState.RUNNING) == was_running:
            with contextlib.suppress(IllegalTransitionError):
                self.cancel(uid, reason)

    def _clear_timer(self, uid: str) -> None:
        if timer := self._timers.pop(uid, None):
            timer.cancel()


def duration(text: str) -> float:
    """Return the seconds of a JSON duration, e.g. ``3600s`` or ``1.5s``.

    :raises ValueError: it isn't one.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as '3600s'")
    return float(match[1])
