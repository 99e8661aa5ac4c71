"""Reading many jobs by list: what to ask for, what it costs, and when it is of no use.

Lists are a saving, never a proof: pages change while they are read, and a service may not allow
them, may show too little, or may show thousands of jobs of others.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_aiptraining.exceptions import (
    ServiceClosedError,
    ServiceError,
    TransientServiceError,
)
from airflow_aiptraining.triggers import budget
from airflow_aiptraining.triggers.service_calls import ServiceCalls, backoff
from airflow_aiptraining.triggers.waiter import Waiting

log = logging.getLogger(__name__)

#: Tells those who wait for these jobs, takes what was read out of the unread ones, and returns
#: how many of the jobs somebody waits for.
Take = Callable[[Sequence[Mapping[str, Any]], Waiting], Awaitable[int]]

#: Jobs that haven't ended.  OR alone: how it binds with AND, the discovery document doesn't say.
NOT_ENDED = "state:QUEUED OR state:PREPARING OR state:RUNNING OR state:CANCELLING"
ENDED = "state:SUCCEEDED OR state:FAILED OR state:CANCELLED"
#: What is needed of each job.
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


class JobLists:
    """The lists of one place.

    :param calls: the service of the place.
    :param take: what is done with the jobs of a page.
    """

    def __init__(self, calls: ServiceCalls, take: Take) -> None:
        self._calls = calls
        self._take = take
        self._pages = 1
        self._again_at = 0.0
        self._again_for = math.inf
        self._failures = 0
        self._by_end_time = True
        self._ended_since: datetime | None = None
        self._newest_end: datetime | None = None

    def are_allowed(self, due: int) -> bool:
        """Tell whether a list may be asked for: not while they are refused, or were of no use.

        :param due: jobs to find.
        """
        return due > self._again_for or time.monotonic() >= self._again_at

    @property
    def are_broken(self) -> bool:
        """True when the last lists failed, one after the other."""
        return self._failures >= LIST_TRIES

    def pages(self, waiting: int) -> int:
        """Return how many pages a list is likely to have.

        :param waiting: jobs that are waited for.
        """
        return max(self._pages, budget.pages_of(waiting))

    def forget_cost(self) -> None:
        """Let a list's cost fade: what it was once isn't held against it for ever."""
        self._pages = max(1, self._pages * 9 // 10)

    def stop(self, why: str, unless_due: float = math.inf) -> None:
        """Ask for no list for a while.

        :param unless_due: jobs; when more than these are to be found, a list may pay again: a
            triggerer that starts takes up its triggers by and by, and lists are newest first.
        """
        self._again_at = time.monotonic() + LIST_PAUSE
        self._again_for = unless_due
        log.info(
            "Jobs of %s are read one by one for the next %.0f minutes instead of by list: %s.",
            self._calls.key,
            LIST_PAUSE / 60,
            why.rstrip("."),
        )

    def note_end(self, job: Mapping[str, Any]) -> None:
        """Keep when the newest job ended, by the service's own clock."""
        try:
            end = datetime.fromisoformat(str(job["endTime"]))
            end = end.astimezone(UTC) - timedelta(seconds=END_OVERLAP)
        except (KeyError, ValueError, OverflowError):
            return
        if self._newest_end is None or end > self._newest_end:
            self._newest_end = end

    def all_read(self) -> None:
        """Note that the ends noted so far have been told: only newer ones need listing."""
        self._ended_since = self._newest_end

    async def read(self, unread: Waiting, *, is_patient: bool) -> tuple[int, int, bool]:
        """List jobs, as long as that costs less than reading each.

        :param unread: jobs to find; what was found is taken out of it.
        :param is_patient: ask again for a page that fails.
        :return: pages read, waited-for jobs seen on them, and whether those were all pages of the
            jobs that haven't ended.
        :raises TransientServiceError: the service doesn't answer; pages that came are used.
        """
        due = len(unread)
        try:
            pages, hits, is_whole = await self._list(
                NOT_ENDED, unread, is_patient, budget.PATIENT_PAGES
            )
            self._pages = pages if is_whole else max(pages, self._pages)
            if not is_whole and unread and budget.is_poor(pages, hits, due):
                self.stop("most jobs of the project are others'", unless_due=2 * due)
            if len(unread) > budget.WORTH_A_PAGE:
                more = await self._list(self._ended_filter(), unread, is_patient, 1)
                pages, hits = pages + more[0], hits + more[1]
        except TransientServiceError:
            self._failures += 1
            raise
        except ServiceError as error:
            if isinstance(error, ServiceClosedError) or error.status == 401:
                raise
            self.stop(str(error))
            return 0, 0, False
        self._failures = 0
        return pages, hits, is_whole

    async def _list(
        self, filter: str, unread: Waiting, is_patient: bool, patience: int
    ) -> tuple[int, int, bool]:
        """Read a list's pages until nothing is unread, or it isn't worth it any more.

        :param patience: pages that it may take before they must have shown waited-for jobs.
        :return: pages read, waited-for jobs seen, and whether the list's end was reached.
        """
        pages = hits = 0
        due = len(unread)
        token = ""
        while True:
            try:
                jobs, token = await self._page(filter, token, is_patient)
            except TransientServiceError:
                raise
            except ServiceError:
                if pages:
                    # The token went stale with the list: what is unread is read by itself.
                    return pages, hits, False
                if filter not in (ENDED, NOT_ENDED):
                    self._by_end_time = False
                    return 1, 0, False
                raise
            pages += 1
            hits += await self._take(jobs, unread)
            if not token or not unread or budget.is_poor(pages, hits, due, patience):
                return pages, hits, not token

    async def _page(
        self, filter: str, token: str, is_patient: bool
    ) -> tuple[list[dict[str, Any]], str]:
        tries = 0
        while True:
            try:
                return await self._calls.call(
                    lambda service: service.list_page(filter, token, fields=FIELDS)
                )
            except TransientServiceError as error:
                if error.status == 501:
                    raise ServiceError(str(error), status=501, reason=error.reason) from error
                tries += 1
                pause = backoff(error, tries)
                if not is_patient or tries >= PAGE_TRIES or pause > PAGE_PAUSE:
                    raise
                await asyncio.sleep(pause)

    def _ended_filter(self) -> str:
        if not self._by_end_time:
            return ENDED
        since = self._ended_since or datetime.now(UTC) - timedelta(days=1)
        return f'endTime>"{since:%Y-%m-%dT%H:%M:%SZ}"'
