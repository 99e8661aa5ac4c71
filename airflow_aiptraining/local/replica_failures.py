"""What a replica's end means: which one decides a job, which is tried again, what is told.

Sources: public logs of ML v1 runs for the words; "Understand the training service" for restarts.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from airflow_aiptraining.local.replicas import Exit

MAX_RESTARTS = 5
"""How often a replica is restarted in its place."""
SETTLE_SECONDS = 1.0
"""How long a failing replica waits for the master's success, which may be what made it fail."""

_TRANSIENT = frozenset({signal.SIGABRT, signal.SIGSEGV})
_TRACEBACK = "Traceback (most recent call last):"
_MESSAGE_LINES = 20


def is_transient(result: Exit) -> bool:
    """Tell whether a replica that ended so is restarted; a user's exception or OOM is for good."""
    code = result.returncode
    return code is not None and any(code in {-number, 128 + number} for number in _TRANSIENT)


def failure(role: str, position: int, result: Exit, restarts: int, more: str) -> str:
    """Return ``errorMessage`` in the real service's words.

    :param restarts: how often the replica was restarted before.
    :param more: where more is found.
    """
    name = f"The replica {role} {position}"
    if result.error:
        return f"{name} was lost: {result.error}.\n\n{more}"
    if result.returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}:
        return (
            f"{name} ran out-of-memory and exited with a non-zero status of 9(SIGKILL).\n\n{more}"
        )
    cause = "\n".join(_cause(result.stderr_tail))
    again = f"It was restarted {restarts} times before. " if restarts else ""
    return (
        f"{name} exited with a non-zero {status(result)}. "
        f"Termination reason: Error. {again}\n{cause}\n\n{more}"
    )


def status(result: Exit) -> str:
    """Return how a replica ended, in a few words."""
    code = result.returncode
    if code is None:
        return result.error
    if code < 0:
        return f"status of {-code}({signal.Signals(-code).name})"
    return f"status of {code}"


def _cause(stderr: Sequence[str]) -> list[str]:
    """Return the last traceback of stderr, shortened in the middle, else its last lines."""
    starts = [index for index, line in enumerate(stderr) if line.startswith(_TRACEBACK)]
    lines = list(stderr[starts[-1] :]) if starts else list(stderr[-_MESSAGE_LINES // 2 :])
    if len(lines) > _MESSAGE_LINES:
        lines = [lines[0], "  [...]", *lines[-_MESSAGE_LINES + 2 :]]
    return [re.sub(r"^(.{2000}).*", r"\1 …", line) for line in lines]
