"""The one place where a call to a service is repeated."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

import tenacity

from airflow_aiptraining.exceptions import TransientServiceError

log = logging.getLogger(__name__)

#: How long a worker bears with a service that doesn't answer, in seconds.
PATIENCE = 300.0
#: First and longest pause between two calls, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0

T = TypeVar("T")


def pause_after(error: BaseException | None, failures: int) -> float:
    """Return the seconds to wait before the next call: what the service asked for, else backoff.

    :param error: what the last call raised.
    :param failures: calls that failed in a row, at least 1.
    """
    if isinstance(error, TransientServiceError) and error.retry_after is not None:
        # Whoever was told the same must not come back at the same moment; "0" is no pause at all.
        spread = random.uniform(0.0, FIRST_PAUSE)  # noqa: S311
        return min(max(error.retry_after, FIRST_PAUSE) + spread, PATIENCE)
    backoff = tenacity.wait_exponential_jitter(
        initial=FIRST_PAUSE, max=LONGEST_PAUSE, jitter=FIRST_PAUSE
    )
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.attempt_number = min(failures, 32)
    return float(backoff(state))


def _pause(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    return pause_after(error, state.attempt_number)


def patiently(call: Callable[[], T], *, patience: float = PATIENCE) -> T:
    """Return what ``call`` returns, asking again while the service doesn't answer.

    Only :class:`TransientServiceError` is repeated; anything else is told at once.

    :param patience: seconds after which the last :class:`TransientServiceError` is raised.
    """

    def tell(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        seconds = state.next_action.sleep if state.next_action is not None else 0.0
        since = datetime.fromtimestamp(time.time() - (state.seconds_since_start or 0.0), UTC)
        log.warning(
            "%s. No answer since %s; asking again in %.0f s.",
            error,
            f"{since:%H:%M:%S} UTC",
            seconds,
        )

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(TransientServiceError),
        wait=_pause,
        stop=tenacity.stop_before_delay(patience),
        before_sleep=tell,
        reraise=True,
    )
    return retrying(call)
