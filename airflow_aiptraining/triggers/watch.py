"""Reading the states of many jobs from one process.

All triggers of a triggerer share one event loop.  A :class:`JobWatch` stands for one place where
jobs run, and is shared by everyone in the process who waits for jobs there: one set of credentials,
one pool of threads with an HTTP connection each, one loop that asks.  What the loop asks is
:mod:`airflow_aiptraining.triggers.rounds`; the budget of requests is the process's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from contextvars import Context
from typing import ClassVar

from airflow_aiptraining.triggers.budget import DEFAULT_BUDGET
from airflow_aiptraining.triggers.rounds import Rounds
from airflow_aiptraining.triggers.service_calls import ServiceCalls, WatchKey
from airflow_aiptraining.triggers.waiter import Waiter, Waiting

__all__ = ["JobWatch", "WatchKey"]

log = logging.getLogger(__name__)

#: The loop looks at the clock this often, in seconds: deadlines hold over a machine's sleep.
LONGEST_NAP = 30.0


class JobWatch:
    """Reads jobs of one place.  Get it by :meth:`shared`."""

    _shared: ClassVar[dict[tuple[WatchKey, asyncio.AbstractEventLoop], JobWatch]] = {}

    def __init__(self, key: WatchKey, request_budget: int = DEFAULT_BUDGET) -> None:
        self.key = key
        self._waiting: Waiting = {}
        self._calls = ServiceCalls(key, request_budget)
        self._rounds = Rounds(self._calls, self._waiting)
        self._users = 0
        self._task: asyncio.Task[None] | None = None
        self._sooner = asyncio.Event()
        self._wakes_at = 0.0

    @classmethod
    def shared(cls, key: WatchKey, request_budget: int = DEFAULT_BUDGET) -> JobWatch:
        """Return the process's watch of that place; use it as ``async with``.

        :param request_budget: requests a minute, for all places of the process.
        """
        loop = asyncio.get_running_loop()
        watch = cls._shared.get((key, loop))
        if watch is None:
            for stale in [each for each in cls._shared if each[1].is_closed()]:
                del cls._shared[stale]
            watch = cls._shared[key, loop] = cls(key, request_budget)
        return watch

    async def __aenter__(self) -> JobWatch:
        self._users += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._users -= 1
        if not self._users:
            self._shared.pop((self.key, asyncio.get_running_loop()), None)
            self._calls.close()

    @property
    def interval_held(self) -> float:
        """Seconds between two looks at a job that the request budget allows."""
        return self._rounds.interval_held

    async def cancel_job(self, job_id: str) -> None:
        """Ask the service to cancel a job; at once, whatever the budget says."""
        await self._calls.call(lambda service: service.cancel_job(job_id), at_once=True)

    def join(self, job_id: str, poll_interval: float, deadline: float | None = None) -> Waiter:
        """Begin to wait for a job; :meth:`leave` must follow.

        :param poll_interval: seconds between two looks, as far as the budget allows.
        :param deadline: epoch seconds; a look that follows it is told in any case.
        """
        now, wall = time.monotonic(), time.time()
        waiter = Waiter(job_id, poll_interval, deadline, now)
        self._waiting[job_id] = (*self._waiting.get(job_id, ()), waiter)
        if self._task is None:
            # In a context of its own: what it logs isn't the first trigger's.
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"aiptraining-watch-{self.key.project_id}", context=Context()
            )
            self._task.add_done_callback(self._ended)
        elif waiter.next_at(now, wall) < self._wakes_at:
            self._sooner.set()
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """End a wait.  With the last one, the watch stops asking."""
        others = tuple(each for each in self._waiting[waiter.job_id] if each is not waiter)
        if others:
            self._waiting[waiter.job_id] = others
        else:
            del self._waiting[waiter.job_id]
        if not self._waiting and self._task is not None:
            self._task.cancel()
            self._task = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        """End all waits if the loop ended by itself: nobody may wait for what never comes."""
        if task is not self._task:
            return
        self._task = None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        log.error("The watch of %s broke off.", self.key, exc_info=error)
        for waiter in self._rounds.waiters():
            waiter.give_up(f"The watch of {self.key} broke off: {error!r}.")

    async def _run(self) -> None:
        while True:
            await self._nap()
            now, wall = time.monotonic(), time.time()
            if now < self._rounds.asks_again_at:
                for waiter in self._rounds.waiters():
                    if waiter.deadline <= wall and waiter.was_looked_at:
                        waiter.tell_deadline()
                continue
            due = {
                job_id: waiters
                for job_id, waiters in self._waiting.items()
                if any(waiter.is_due(now, wall) for waiter in waiters)
            }
            if due:
                await self._rounds.round(due)

    async def _nap(self) -> None:
        """Sleep until somebody wants a look, and one may be had."""
        now, wall = time.monotonic(), time.time()
        waiters, away_until = self._rounds.waiters(), self._rounds.asks_again_at
        if now < away_until:
            known = (waiter.deadline for waiter in waiters if waiter.was_looked_at)
            self._wakes_at = min(away_until, now - wall + min(known, default=math.inf))
        else:
            wanted = (waiter.next_at(now, wall) for waiter in waiters)
            self._wakes_at = min(wanted, default=math.inf)
        pause = min(self._wakes_at - now, LONGEST_NAP)
        self._sooner.clear()
        # Others have their turn, whatever is due.
        await asyncio.sleep(0)
        if pause > 0:
            with contextlib.suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it may swallow the cancellation by ``leave``.
                async with asyncio.timeout(pause):
                    await self._sooner.wait()
