"""How often a service may be asked, what a look costs, and when the next one is due.

Pure: no I/O, and the clock is handed in.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable

#: Requests a minute, per process, where no setting says otherwise.
DEFAULT_BUDGET = 240
#: So many jobs are read one by one: a list would cost as much.
FEW = 3
#: Jobs on one page of a list, at most.  Source: ML v1 discovery, ``projects.jobs.list``.
PAGE = 100
#: The first look at a job comes so many seconds after the wait began.  A trigger that fires about a
#: second after its task was deferred can make Airflow run the task's ``execute`` again.
FIRST_LOOK = 3.0
#: A look that is due waits so many seconds more for others to join it, at most.
GATHER = 1.0
#: Reads one by one after a list, at most (or twice the list's pages): then the list is newer.
MOST_READS = 60
#: Jobs missing in the list of active ones that are worth a page of those that have ended.
WORTH_A_PAGE = 10
#: Pages that a list may take (or a tenth of what reading each would) before it must have shown a
#: waited-for job per page.
PATIENT_PAGES = 5


class RequestBudget:
    """Spaces requests so that no minute has more than its budget.

    An eighth of the budget may go at once; the rest is earned evenly over the minute.

    :param per_minute: requests a minute; at least 1.
    :param clock: monotonic seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = max(1, per_minute)
        self._clock = clock
        self._burst = max(1, self.per_minute // 8)
        #: Requests a second that can be kept up.
        self.rate = max(self.per_minute - self._burst, self.per_minute / 2) / 60
        self._left = float(self._burst)
        self._at = clock()

    def reserve(self) -> float:
        """Take one request, and return the seconds to wait before it may be sent."""
        now = self._clock()
        self._left = min(float(self._burst), self._left + (now - self._at) * self.rate) - 1.0
        self._at = now
        return max(0.0, -self._left / self.rate)

    def interval(self, requests: int, pause: float = 0.0) -> float:
        """Return the seconds between two rounds of so many requests each that can be kept up.

        :param pause: seconds that a request had to wait lately: longer where others spend, too.
        """
        return requests * max(1 / self.rate, pause)


@functools.cache
def process_budget(per_minute: int) -> RequestBudget:
    """Return the one budget of this process, whatever places and connections it is spent on.

    :param per_minute: the setting; the same everywhere in a process.
    """
    return RequestBudget(per_minute)


def first_look(now: float, poll_interval: float) -> float:
    """Return when a job that somebody begins to wait for now is looked at first."""
    return now + min(FIRST_LOOK, poll_interval)


def next_look(now: float, poll_interval: float, jitter: float) -> float:
    """Return when a job that was read now is looked at again.

    :param jitter: 0 to 1, one draw for all jobs of a round: they stay together, so that one list
        serves them, while the rounds of several processes drift apart.
    """
    return now + poll_interval * (0.9 + 0.1 * jitter)


def gather(poll_interval: float) -> float:
    """Return the seconds that a look which is due waits for others."""
    return min(GATHER, poll_interval / 10)


def pages_of(jobs: int) -> int:
    """Return the pages that a list of so many jobs has."""
    return max(1, math.ceil(jobs / PAGE))


def prefers_list(due: int, pages: int) -> bool:
    """Tell whether a list of ``pages`` costs less than reading ``due`` jobs one by one."""
    return due > FEW and due > pages


def is_poor(pages: int, hits: int, due: int, patience: int = PATIENT_PAGES) -> bool:
    """Tell whether a list shows so few of the jobs waited for that reading each costs less.

    :param pages: read so far.
    :param hits: jobs waited for that were on them.
    :param due: jobs to find.
    :param patience: pages that it may take in any case.
    """
    return pages >= max(patience, due // 10) and hits < pages


def most_reads(pages: int) -> int:
    """Return how many jobs may be read one by one before it is time to list again."""
    return max(MOST_READS, 2 * pages)
