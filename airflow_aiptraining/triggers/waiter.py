"""One trigger's place in a watch: what it is told, and when.

There may be thousands in a process, so each has slots, one future while it waits, and no task.
"""

from __future__ import annotations

import asyncio
import math
import sys

from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.triggers import budget

#: A trouble that goes on is told again after so many seconds.
REMINDER = 300.0
#: A job that was seen and isn't found any more is given up after so many seconds ...
VANISHED_LIMIT = 120.0
#: ... one that was never found after so many ...
UNKNOWN_LIMIT = 30.0
#: ... and one that may not be read after so many.  Each needs ``LEAST_LOOKS`` as well.
REFUSED_LIMIT = 300.0
LEAST_LOOKS = 3


class Trouble:
    """Why a job can't be read; one for all waiters whose looks failed in the same way.

    :param since: epoch seconds at which it began.
    :param message: what the last look met, with the cure where one is known.
    :param is_away: the service doesn't answer, as opposed to: it refuses.
    """

    __slots__ = ("is_away", "message", "since")

    def __init__(self, since: float, message: str, *, is_away: bool) -> None:
        self.since = since
        self.message = message
        self.is_away = is_away


class Waiter:
    """Waits for one job.

    :param job_id: the job.
    :param poll_interval: seconds between two looks that the trigger asks for.
    :param deadline: epoch seconds, ``None`` for none; the look after it is always told.
    :param now: monotonic seconds.

    Attributes that the trigger reads after :meth:`news`: ``state``, the API's word, empty before
    the first look; ``trouble`` of the last look, and ``since`` when (epoch seconds); ``error``, the
    reason to give up; ``is_over``, true when nothing more can be learnt: the job has ended, or was
    given up.
    """

    __slots__ = (
        "_future",
        "_has_news",
        "_refusal",
        "_refused_looks",
        "_refused_since",
        "_told",
        "_told_at",
        "deadline",
        "due",
        "error",
        "is_over",
        "job_id",
        "poll_interval",
        "since",
        "state",
        "trouble",
    )

    def __init__(
        self, job_id: str, poll_interval: float, deadline: float | None, now: float
    ) -> None:
        self.job_id = job_id
        self.poll_interval = max(0.001, poll_interval)
        self.deadline = math.inf if deadline is None else deadline
        self.due = budget.first_look(now, self.poll_interval)
        self.state = ""
        self.trouble: Trouble | None = None
        self.since = 0.0
        self.error = ""
        self.is_over = False
        self._future: asyncio.Future[None] | None = None
        self._has_news = False
        self._told = False
        self._told_at = -math.inf
        self._refusal = ""
        self._refused_since = 0.0
        self._refused_looks = 0

    async def news(self) -> None:
        """Return when there is something new to read here."""
        while not self._has_news:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            finally:
                self._future = None
        self._has_news = False

    @property
    def was_looked_at(self) -> bool:
        """True when the service was asked at least once, with whatever result."""
        return bool(self.state) or self.trouble is not None

    def next_at(self, now: float, wall: float) -> float:
        """Return the monotonic time at which this waiter wants the next round.

        :param wall: epoch seconds of the same moment: deadlines hold over a machine's sleep.
        """
        if self.is_over:
            return math.inf
        return min(self.due + budget.gather(self.poll_interval), now + self.deadline - wall)

    def is_due(self, now: float, wall: float) -> bool:
        """Tell whether a round that starts now serves this waiter."""
        return not self.is_over and (self.due <= now or self.deadline <= wall)

    def saw(self, state: str, next_look: float, wall: float) -> bool:
        """Take a state that the service answered.

        :param state: the API's word.
        :param next_look: monotonic time of the next look.
        :return: whether the waiter was woken.
        """
        self.due = next_look
        is_news = state != self.state or self._told or self.deadline <= wall
        if state != self.state:
            self.state = sys.intern(state)
            self.is_over = JobState.of({"state": state}).is_terminal
        self.trouble = None
        self._refusal = ""
        self._told = False
        return self._wake() if is_news else False

    def missed(self, trouble: Trouble, next_look: float, now: float, wall: float) -> bool:
        """Take a look that failed, for a reason that isn't the job's.  Returns as :meth:`saw`."""
        self.due = next_look
        if self.trouble is None or self.trouble.is_away != trouble.is_away:
            self.since = trouble.since
        self.trouble = trouble
        is_news = now - self._told_at >= REMINDER or self.deadline <= wall
        if is_news:
            self._told, self._told_at = True, now
        return self._wake() if is_news else False

    def refused(self, refusal: str, trouble: Trouble, now: float, wall: float) -> bool:
        """Take a refusal; too many of one kind over too long a time end the wait with an error.

        :param refusal: ``not found``, ``not allowed`` or ``not readable``.
        """
        if self._refusal != refusal:
            self._refusal, self._refused_since, self._refused_looks = refusal, now, 0
        self._refused_looks += 1
        limit = REFUSED_LIMIT
        if refusal == "not found":
            limit = VANISHED_LIMIT if self.state else UNKNOWN_LIMIT
        lasted = now - self._refused_since
        if lasted >= limit and self._refused_looks >= LEAST_LOOKS:
            before = f"It was {self.state} when it was last seen. " if self.state else ""
            self.give_up(
                f"{trouble.message} {before}Job {self.job_id!r} was {refusal} in "
                f"{self._refused_looks} looks over {lasted:.0f} s."
            )
            return True
        pause = min(self.poll_interval, limit / (2 * LEAST_LOOKS))
        return self.missed(trouble, now + pause, now, wall)

    def give_up(self, message: str) -> None:
        """End the wait with an error."""
        self.error, self.is_over = message, True
        self._wake()

    def tell_deadline(self) -> None:
        """Wake the trigger for its deadline without a look: the service is away."""
        self.deadline = math.inf
        self._wake()

    def _wake(self) -> bool:
        self._has_news = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
        return True


#: Jobs by id, each with those who wait for it.
Waiting = dict[str, tuple[Waiter, ...]]
