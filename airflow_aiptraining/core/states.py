"""States of a job, and what each means for the one who waits.

Imports nothing beyond the standard library: a DAG file and every poll of a trigger pay for it.

Source: ML v1 discovery, revision 20251213, ``Job.state`` (trials use the same enum).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class JobState(StrEnum):
    """State of a job or of one of its trials, in the API's words.

    ::

        QUEUED -> PREPARING -> RUNNING -> SUCCEEDED | FAILED
        QUEUED | PREPARING | RUNNING -> CANCELLING -> CANCELLED
        QUEUED | PREPARING -> FAILED
    """

    STATE_UNSPECIFIED = "STATE_UNSPECIFIED"
    QUEUED = "QUEUED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> JobState:
        """Return the state that a job resource says it is in.

        :param job: a ``Job`` or ``HyperparameterOutput`` as the service answered it.
        :return: ``STATE_UNSPECIFIED`` where the field is missing or holds a word that the
            discovery document doesn't know: never an end state, so whoever waits goes on waiting.
        """
        try:
            return cls(job.get("state") or "STATE_UNSPECIFIED")
        except ValueError:
            return cls.STATE_UNSPECIFIED

    @property
    def is_terminal(self) -> bool:
        """True when the job has ended and its state will never change again."""
        return self in _TERMINAL

    @property
    def is_active(self) -> bool:
        """True when the job is on its way or at work, and nobody asked it to stop."""
        return self in _ACTIVE

    @property
    def is_successful(self) -> bool:
        """True for ``SUCCEEDED`` alone: any other end, and any unknown word, is no success."""
        return self is JobState.SUCCEEDED


_TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
_ACTIVE = frozenset({JobState.QUEUED, JobState.PREPARING, JobState.RUNNING})
