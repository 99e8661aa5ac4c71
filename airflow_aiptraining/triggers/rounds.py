"""Rounds of a watch: reading the jobs that are due, for as few requests as it takes.

A round lists the jobs that haven't ended, in pages of 100.  A job that isn't in the list may have
ended, or may have slipped between two pages: it is looked for among those that have ended, and
else read by itself.  Only a state that the service answered ends a wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.exceptions import (
    AIPTrainingError,
    JobNotFoundError,
    PermissionDeniedError,
    ServiceClosedError,
    ServiceError,
    TransientServiceError,
)
from airflow_aiptraining.triggers import budget
from airflow_aiptraining.triggers.listing import JobLists
from airflow_aiptraining.triggers.service_calls import THREADS, ServiceCalls, backoff
from airflow_aiptraining.triggers.waiter import REMINDER, Trouble, Waiter, Waiting

log = logging.getLogger(__name__)

_REFUSALS: dict[type[Exception], str] = {
    JobNotFoundError: "not found",
    PermissionDeniedError: "not allowed",
}


class Rounds:
    """Reads jobs of one place, and tells those who wait for them.

    :param calls: the service of the place.
    :param waiting: who waits; kept by the watch.
    """

    def __init__(self, calls: ServiceCalls, waiting: Waiting) -> None:
        self._calls = calls
        self._waiting = waiting
        self._lists = JobLists(calls, self._take)
        self._jitter = 0.0
        #: Seconds that the budget held back a request of the last round.
        self._pause = 0.0
        self._trouble: Trouble | None = None
        self._failures = 0
        self._interval_told = math.inf
        self._interval_tell_at = 0.0
        #: Monotonic time before which no round may be made: the service is away.
        self.asks_again_at = 0.0
        #: Seconds between two looks at a job that the request budget allows.
        self.interval_held = 0.0

    def waiters(self) -> Iterator[Waiter]:
        """Yield all who wait."""
        return (waiter for waiters in self._waiting.values() for waiter in waiters)

    async def round(self, due: Waiting) -> None:
        """Read jobs, and tell what came of it.  Raises nothing that a service may cause."""
        self._jitter = random.random()  # noqa: S311 - spreads the rounds of processes
        unread = dict(due)
        try:
            await self._read(unread)
        except TransientServiceError as error:
            self._failures += 1
            self.asks_again_at = time.monotonic() + backoff(error, self._failures)
            since = self._trouble.since if self._trouble else time.time()
            self._trouble = Trouble(since, _without_job(error), is_away=True)
            for waiter in _all(unread):
                now, wall = time.monotonic(), time.time()
                woken = waiter.missed(self._trouble, self.asks_again_at, now, wall)
                await _let_others(woken)
        except Exception as error:
            if not isinstance(error, AIPTrainingError):
                # A connection that isn't there, a key that can't be read, or a fault of our own.
                log.warning("Jobs of %s can't be read.", self._calls.key, exc_info=True)
            await self._refuse(unread, error)

    async def _read(self, unread: Waiting) -> None:
        """Read the jobs of ``unread``; what was read is taken out of it.

        :raises ServiceError: what is left in it was not read for this reason.
        """
        spent, held_back = self._calls.spent, self._calls.held_back
        pages = self._lists.pages(len(self._waiting))
        if not self._lists.are_allowed(len(unread)):
            self._hold(len(self._waiting))
            await self._read_each(unread, budget.most_reads(0))
        elif not budget.prefers_list(len(unread), pages):
            self._lists.forget_cost()
            await self._read_each(unread, budget.most_reads(0))
        else:
            self._hold(pages)
            await self._read_by_list(unread)
            self._hold(self._calls.spent - spent)
        if self._calls.spent > spent:
            self._pause = (self._calls.held_back - held_back) / (self._calls.spent - spent)
        if not unread:
            self._lists.all_read()

    async def _read_by_list(self, unread: Waiting) -> None:
        try:
            pages, hits, is_whole = await self._lists.read(unread, is_patient=self._trouble is None)
        except TransientServiceError:
            if not self._lists.are_broken:
                raise
            # Is it the service that is away, or only its list?
            await self._read_each(unread, budget.most_reads(0))
            self._lists.stop("it fails while single jobs can be read")
            return
        blind = await self._read_each(unread, budget.most_reads(pages))
        if is_whole and blind > max(hits, budget.FEW):
            self._lists.stop("it doesn't show jobs that are there")

    async def _read_each(self, unread: Waiting, most: int) -> int:
        """Read jobs one by one, those due longest first.

        :param most: at most so many; the rest stays due.
        :return: how many of them haven't ended.
        """
        order = sorted(unread, key=lambda job_id: min(each.due for each in unread[job_id]))[:most]
        active = 0
        for start in range(0, len(order), THREADS):
            batch = [job_id for job_id in order[start : start + THREADS] if job_id in self._waiting]
            answers = await asyncio.gather(*map(self._get_job, batch), return_exceptions=True)
            away: BaseException | None = None
            refusals: list[tuple[str, Exception]] = []
            read = 0
            for job_id, answer in zip(batch, answers, strict=True):
                if isinstance(answer, TransientServiceError):
                    away = answer
                elif isinstance(answer, Exception):
                    refusals.append((job_id, answer))
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    read += 1
                    active += not JobState.of(answer).is_terminal
                    await self._take([{**answer, "jobId": job_id}], unread)
            if refusals:
                self._is_back()
            for job_id, error in refusals:
                await self._refuse({job_id: unread.pop(job_id)}, error)
            if away is not None:
                raise away
            if not read and refusals and not isinstance(refusals[-1][1], JobNotFoundError):
                # The credentials' fault most likely: no need to ask for each job.
                raise refusals[-1][1]
        return active

    async def _get_job(self, job_id: str) -> dict[str, Any]:
        return await self._calls.call(lambda service: service.get_job(job_id))

    async def _take(self, jobs: Sequence[Mapping[str, Any]], unread: Waiting) -> int:
        """Tell what was read to those who wait for it.  Returns how many jobs those are."""
        self._is_back()
        hits = 0
        for job in jobs:
            job_id = str(job.get("jobId", ""))
            waiters = self._waiting.get(job_id)
            if waiters is None:
                continue
            hits += any(not waiter.is_over for waiter in waiters)
            now, wall = time.monotonic(), time.time()
            state = str(job.get("state") or JobState.STATE_UNSPECIFIED)
            self._lists.note_end(job)
            for waiter in waiters:
                is_early = not waiter.was_looked_at and not waiter.is_due(now, wall)
                if not waiter.is_over and not is_early:
                    due = budget.next_look(now, waiter.poll_interval, self._jitter)
                    await _let_others(waiter.saw(state, due, wall))
            # Last: after a fault in here, it counts as unread and is told so.
            unread.pop(job_id, None)
        return hits

    async def _refuse(self, unread: Waiting, error: Exception) -> None:
        """Tell that jobs may not be read, or aren't there."""
        now, wall = time.monotonic(), time.time()
        trouble = Trouble(wall, str(error) or type(error).__name__, is_away=False)
        refusal = _REFUSALS.get(type(error), "not readable")
        for waiter in _all(unread):
            if waiter.is_over:
                continue
            if isinstance(error, ServiceClosedError):
                waiter.give_up(str(error))
                await _let_others(True)
            else:
                await _let_others(waiter.refused(refusal, trouble, now, wall))

    def _is_back(self) -> None:
        if self._trouble is not None:
            since = datetime.fromtimestamp(self._trouble.since, UTC)
            log.info(
                "%s answers again; it was away since %s.", self._calls.key, f"{since:%H:%M:%S}"
            )
        self._trouble, self._failures = None, 0

    def _hold(self, requests: int) -> None:
        """Keep the interval that rounds of so many requests need, and log it where it holds."""
        self.interval_held = held = self._calls.budget.interval(requests, self._pause)
        wanted = min((waiter.poll_interval for waiter in self.waiters()), default=held)
        is_news = not 0.8 < held / self._interval_told < 1.25
        if held > 1.2 * wanted and is_news and time.monotonic() >= self._interval_tell_at:
            self._interval_told, self._interval_tell_at = held, time.monotonic() + REMINDER
            log.warning(
                "%d jobs of %s are read every %.1f s, not every %.1f s: that is what "
                "[aiptraining] request_budget = %d requests a minute allows.",
                len(self._waiting),
                self._calls.key,
                held,
                wanted,
                self._calls.budget.per_minute,
            )


def _all(waiting: Waiting) -> list[Waiter]:
    return [waiter for waiters in waiting.values() for waiter in waiters]


async def _let_others(woken: bool) -> None:
    """Let others on the event loop have their turn after each trigger that was woken.

    What a trigger does then is Airflow's: thousands in a row would stop the loop for seconds.
    """
    if woken:
        await asyncio.sleep(0)


def _without_job(error: Exception) -> str:
    """Return what the service said, without the one job of many that it was asked about."""
    if not isinstance(error, ServiceError) or not error.reason:
        return str(error)
    return f"HTTP {error.status}: {error.reason}" if error.status else error.reason
