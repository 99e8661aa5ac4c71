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
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.exceptions import (
    JobNotFoundError,
    ServiceClosedError,
    ServiceError,
    TransientServiceError,
)
from airflow_aiptraining.triggers import budget
from airflow_aiptraining.triggers.service_calls import THREADS, ServiceCalls
from airflow_aiptraining.triggers.waiter import REMINDER, Trouble, Waiter

log = logging.getLogger(__name__)

#: Jobs by id, each with those who wait for it.
Waiting = dict[str, tuple[Waiter, ...]]

#: Jobs that haven't ended.  OR alone: how it binds with AND, the discovery document doesn't say.
NOT_ENDED = "state:QUEUED OR state:PREPARING OR state:RUNNING OR state:CANCELLING"
ENDED = "state:SUCCEEDED OR state:FAILED OR state:CANCELLED"
#: What a round needs of each job.
FIELDS = "jobId,state,endTime"
#: A list that is refused, or shows too little, isn't asked for again for so many seconds.
LIST_PAUSE = 600.0
#: A list that failed so many times in a row is taken for broken where reading single jobs works.
LIST_TRIES = 3
#: A page is asked for so many times before its round fails ...
PAGE_TRIES = 3
#: ... if the service doesn't ask to wait for longer than this, in seconds.
PAGE_PAUSE = 5.0
#: Jobs that ended so many seconds before the newest end of the last round are listed again.
END_OVERLAP = 60.0
#: So many triggers are woken before others on the event loop have their turn.
WOKEN_AT_ONCE = 20


class Rounds:
    """Reads jobs of one place, and tells those who wait for them.

    :param calls: the service of the place.
    :param request_budget: requests a minute.
    :param waiting: who waits; kept by the watch.
    """

    def __init__(self, calls: ServiceCalls, request_budget: int, waiting: Waiting) -> None:
        self._calls = calls
        self._budget = budget.RequestBudget(request_budget)
        self._waiting = waiting
        self._woken = 0
        self._trouble: Trouble | None = None
        self._failures = 0
        #: Monotonic time before which no round may be made: the service is away.
        self.asks_again_at = 0.0
        #: Seconds between two looks at a job that the request budget allows.
        self.interval_held = 0.0
        self._held_told = math.inf
        self._holds_tell_at = 0.0
        # The list: what it costs, and whether it is of use.
        self._pages = 1
        self._lists_again_at = 0.0
        self._list_failures = 0
        self._by_end_time = True
        self._ended_since: datetime | None = None
        self._newest_end: datetime | None = None

    async def get_job(self, job_id: str) -> dict[str, Any]:
        """Return the Job resource, as soon as the budget allows.

        :raises ServiceError: see :meth:`MLv1Service.get_job`.
        """
        await self._afford()
        return await self._calls.call(lambda service: service.get_job(job_id))

    def charge(self) -> None:
        """Take one request that can't wait from the budget."""
        self._budget.reserve()

    def waiters(self) -> Iterator[Waiter]:
        """Yield all who wait."""
        return (waiter for waiters in self._waiting.values() for waiter in waiters)

    async def round(self, due: Waiting) -> None:
        """Read jobs, and tell what came of it.  Raises nothing that a service may cause."""
        unread = dict(due)
        try:
            await self._read(unread)
        except TransientServiceError as error:
            self._failures += 1
            pause = _backoff(error, self._failures)
            self.asks_again_at = time.monotonic() + pause
            since = self._trouble.since if self._trouble else time.time()
            self._trouble = Trouble(since, str(error), is_away=True)
            for waiter in _all(unread):
                now, wall = time.monotonic(), time.time()
                woken = waiter.missed(self._trouble, self.asks_again_at, now, wall)
                await self._let_others(woken)
        except Exception as error:
            if not isinstance(error, ServiceError):
                log.debug("A round of %s failed", self._place(), exc_info=True)
            await self._refuse(unread, error)

    async def _read(self, unread: Waiting) -> None:
        """Read the jobs of ``unread``; what was read is taken out of it.

        :raises ServiceError: what is left in it was not read for this reason.
        """
        jitter = random.random()  # noqa: S311 - spreads the rounds of processes
        spent = self._budget.spent
        pages = max(self._pages, budget.pages_of(len(self._waiting)))
        may_list = time.monotonic() >= self._lists_again_at
        will_list = may_list and budget.prefers_list(len(unread), pages)
        if will_list:
            self._hold(pages)
        elif not may_list:
            self._hold(len(self._waiting))
        listed = list_broke = False
        pages_read = hits = 0
        if will_list:
            try:
                pages_read, hits = await self._read_lists(unread, jitter)
                listed = True
            except TransientServiceError:
                self._list_failures += 1
                if self._list_failures < LIST_TRIES:
                    raise
                list_broke = True
        else:
            # What the list cost once isn't held against it for ever.
            self._pages = max(1, self._pages * 9 // 10)
        blind = await self._read_each(unread, jitter, budget.most_reads(pages_read))
        if list_broke:
            self._stop_listing("it fails while single jobs can be read")
        elif listed and blind > max(hits, budget.FEW):
            self._stop_listing("it doesn't show jobs that are there")
        if listed:
            self._hold(self._budget.spent - spent)
        if not unread:
            self._ended_since = self._newest_end

    async def _read_lists(self, unread: Waiting, jitter: float) -> tuple[int, int]:
        """List jobs, as long as that costs less than reading each.

        :return: pages read, and waited-for jobs seen on them.
        """
        try:
            pages, hits, is_whole = await self._read_list(NOT_ENDED, unread, jitter, False)
            self._list_failures = 0
            self._pages = pages if is_whole else max(pages, self._pages)
            if not is_whole and unread and budget.is_poor(pages, hits):
                self._stop_listing("most jobs of the project are others'")
            if len(unread) > budget.WORTH_A_PAGE:
                more = await self._read_list(self._ended_filter(), unread, jitter, True)
                pages, hits = pages + more[0], hits + more[1]
        except (TransientServiceError, ServiceClosedError):
            raise
        except ServiceError as error:
            if error.status == 401:
                raise
            self._stop_listing(str(error))
            return 0, 0
        return pages, hits

    async def _read_list(
        self, filter: str, unread: Waiting, jitter: float, is_greedy: bool
    ) -> tuple[int, int, bool]:
        """Read a list's pages until nothing is unread, or it isn't worth it any more.

        :param is_greedy: stop at the first page that shows fewer than two unread jobs.
        :return: pages read, waited-for jobs seen, and whether the list's end was reached.
        """
        pages = hits = 0
        token = ""
        while True:
            try:
                jobs, token = await self._page(filter, token)
            except TransientServiceError:
                raise
            except ServiceError:
                if pages:
                    # The token went stale with the list: what is unread is read by itself.
                    return pages, hits, False
                if is_greedy and self._by_end_time and filter != ENDED:
                    self._by_end_time = False
                    return 1, 0, False
                raise
            pages += 1
            before = len(unread)
            hits += await self._take(jobs, unread, jitter)
            if not token:
                return pages, hits, True
            if not unread or (is_greedy and before - len(unread) < 2):
                return pages, hits, False
            if not is_greedy and budget.is_poor(pages, hits):
                return pages, hits, False

    async def _page(self, filter: str, token: str) -> tuple[list[dict[str, Any]], str]:
        tries = 0
        while True:
            await self._afford()
            try:
                return await self._calls.call(
                    lambda service: service.list_page(filter, token, fields=FIELDS)
                )
            except TransientServiceError as error:
                if error.status == 501:
                    raise ServiceError(str(error), status=501, reason=error.reason) from error
                tries += 1
                pause = _backoff(error, tries)
                if self._trouble or tries >= PAGE_TRIES or pause > PAGE_PAUSE:
                    raise
                await asyncio.sleep(pause)

    def _ended_filter(self) -> str:
        if not self._by_end_time:
            return ENDED
        since = self._ended_since or datetime.now(UTC) - timedelta(days=1)
        return f'endTime>"{since:%Y-%m-%dT%H:%M:%SZ}"'

    async def _read_each(self, unread: Waiting, jitter: float, most: int) -> int:
        """Read jobs one by one, those due longest first.

        :param most: at most so many; the rest stays due.
        :return: how many of them haven't ended.
        """
        order = sorted(unread, key=lambda job_id: min(each.due for each in unread[job_id]))[:most]
        active = 0
        for start in range(0, len(order), THREADS):
            batch = [job_id for job_id in order[start : start + THREADS] if job_id in self._waiting]
            answers = await asyncio.gather(*map(self.get_job, batch), return_exceptions=True)
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
                    await self._take([{**answer, "jobId": job_id}], unread, jitter)
            if refusals:
                self._is_back()
            for job_id, error in refusals:
                await self._refuse({job_id: unread.pop(job_id)}, error)
            if away is not None:
                raise away
            if not read and refusals and not isinstance(refusals[-1][1], JobNotFoundError):
                # The credentials' fault most likely: no need to ask for each job.
                raise refusals[-1][1]
        self._is_back()
        return active

    async def _take(self, jobs: Iterable[Mapping[str, Any]], unread: Waiting, jitter: float) -> int:
        """Tell what was read to those who wait for it.  Returns how many of the jobs they are."""
        self._is_back()
        hits = 0
        for job in jobs:
            job_id = str(job.get("jobId", ""))
            waiters = self._waiting.get(job_id)
            if waiters is None:
                continue
            hits += 1
            now, wall = time.monotonic(), time.time()
            unread.pop(job_id, None)
            state = str(job.get("state") or JobState.STATE_UNSPECIFIED)
            self._note_end(job)
            for waiter in waiters:
                is_early = not waiter.was_looked_at and not waiter.is_due(now, wall)
                if not waiter.is_over and not is_early:
                    due = budget.next_look(now, waiter.poll_interval, jitter)
                    await self._let_others(waiter.saw(state, due, wall))
        return hits

    def _note_end(self, job: Mapping[str, Any]) -> None:
        """Keep when the newest job ended, by the service's own clock."""
        try:
            end = datetime.fromisoformat(str(job["endTime"])) - timedelta(seconds=END_OVERLAP)
        except (KeyError, ValueError):
            return
        if end.tzinfo is not None and (self._newest_end is None or end > self._newest_end):
            self._newest_end = end.astimezone(UTC)

    async def _refuse(self, unread: Waiting, error: Exception) -> None:
        """Tell that jobs may not be read, or aren't there."""
        now, wall = time.monotonic(), time.time()
        trouble = Trouble(wall, str(error) or type(error).__name__, is_away=False)
        refusal = "not found" if isinstance(error, JobNotFoundError) else "not allowed"
        for waiter in _all(unread):
            if waiter.is_over:
                continue
            if isinstance(error, ServiceClosedError):
                waiter.give_up(str(error))
                await self._let_others(True)
            else:
                await self._let_others(waiter.refused(refusal, trouble, now, wall))

    def _is_back(self) -> None:
        if self._trouble is not None:
            since = datetime.fromtimestamp(self._trouble.since, UTC)
            log.info("%s answers again; it was away since %s.", self._place(), f"{since:%H:%M:%S}")
        self._trouble, self._failures = None, 0

    def _stop_listing(self, why: str) -> None:
        self._lists_again_at = time.monotonic() + LIST_PAUSE
        log.info(
            "Jobs of %s are read one by one for the next %.0f minutes instead of by list: %s.",
            self._place(),
            LIST_PAUSE / 60,
            why.rstrip("."),
        )

    def _hold(self, requests: int) -> None:
        """Keep the interval that rounds of so many requests need, and log it where it holds."""
        self.interval_held = held = self._budget.interval(requests)
        wanted = min((waiter.poll_interval for waiter in self.waiters()), default=held)
        is_news = not 0.8 < held / self._held_told < 1.25
        if held > 1.2 * wanted and is_news and time.monotonic() >= self._holds_tell_at:
            self._held_told, self._holds_tell_at = held, time.monotonic() + REMINDER
            log.warning(
                "%d jobs of %s are read every %.1f s, not every %.1f s: that is what "
                "[aiptraining] request_budget = %d requests a minute allows.",
                len(self._waiting),
                self._place(),
                held,
                wanted,
                self._budget.per_minute,
            )

    def _place(self) -> str:
        key = self._calls.key
        return f"project {key.project_id!r} at {key.api_endpoint or 'ml.googleapis.com'}"

    async def _afford(self) -> None:
        pause = self._budget.reserve()
        if pause > 0:
            await asyncio.sleep(pause)

    async def _let_others(self, woken: bool) -> None:
        self._woken += woken
        if self._woken >= WOKEN_AT_ONCE:
            self._woken = 0
            await asyncio.sleep(0)


def _all(waiting: Waiting) -> list[Waiter]:
    return [waiter for waiters in waiting.values() for waiter in waiters]


def _backoff(error: BaseException, failures: int) -> float:
    """Return the seconds to wait after so many calls in a row that weren't answered."""
    # Imported here: tenacity is not for those who only parse a DAG.
    from airflow_aiptraining.services.retries import pause_after

    return pause_after(error, failures)
