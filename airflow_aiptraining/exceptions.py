"""The errors that this package raises.

::

    AIPTrainingError
    ├── InvalidJobError            a config, argument or param breaks a rule; nothing was submitted
    ├── InvalidJobIdError          a job id or its base can't be used
    ├── InvalidTrainerError        a source tree or archive can't be packaged
    ├── StagingError               a bucket or object that the job needs can't be used
    ├── JobConflictError           the job id belongs to other work
    ├── StaleTryError              a later try of the same task has taken over
    ├── ServiceError               the training service refused a call (status, reason)
    │   ├── TransientServiceError  429, 5xx, lost connections, broken bodies: ask again
    │   ├── JobNotFoundError       404
    │   ├── JobExistsError         409 on create
    │   ├── PermissionDeniedError  401, 403
    │   └── ServiceClosedError     Google has closed this service
    ├── JobFailedError             the job ended, not SUCCEEDED
    │   └── JobCancelledError      ... because somebody cancelled it
    ├── JobTimeoutError            the job's deadline passed
    └── GateNotPassedError         a model isn't good or whole enough to go downstream

Each error carries its facts as attributes; its text says what happened, to which job, and what to
do about it.  None of them imports Airflow: operators turn those that no retry can cure into
``AirflowFailException``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Violation:
    """One broken rule.

    :param path: the field as in the API, e.g. ``trainingInput.workerCount`` or
        ``trainingInput.hyperparameters.params[0].minValue``; empty for the whole document.
    :param message: the rule, what was found, and the cure where one is known.
    :param source: where the value was written: ``config.yaml:12``, ``operator arguments`` ...;
        empty where nobody wrote it (a missing field).
    """

    path: str
    message: str
    source: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.source, self.path, self.message) if part)


class AIPTrainingError(Exception):
    """Root of this package's errors."""


class InvalidJobError(AIPTrainingError):
    """A job's config breaks rules of the API; all of them are told at once.

    :param violations: at least one.
    """

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        count = len(self.violations)
        head = f"The job was not submitted: {count} problem{'s' * (count > 1)} in its config.\n"
        super().__init__(head + "\n".join(f"  {violation}" for violation in self.violations))


class InvalidJobIdError(AIPTrainingError):
    """A job id, or the base it is made from, is not legal."""


class InvalidTrainerError(AIPTrainingError):
    """A trainer's source tree or archive can't be packaged; nothing was uploaded."""


class StagingError(AIPTrainingError):
    """A bucket or object that the job needs is missing, unreadable or not writable."""


class JobConflictError(AIPTrainingError):
    """The job id is taken by work that isn't this task's."""


class StaleTryError(AIPTrainingError):
    """A later try of the same task has taken over; this process decides nothing any more."""


class ServiceError(AIPTrainingError):
    """The service refused a call.

    :param status: HTTP status; 0 where no answer came.
    :param reason: the service's own words.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class TransientServiceError(ServiceError):
    """The service didn't answer, or not now: the same call may succeed later.

    :param retry_after: seconds that the service asked to wait, if it did.
    """

    def __init__(
        self, message: str, *, status: int = 0, reason: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message, status=status, reason=reason)
        self.retry_after = retry_after


class JobNotFoundError(ServiceError):
    """The service knows no such job."""


class JobExistsError(ServiceError):
    """A job with this id exists already."""


class PermissionDeniedError(ServiceError):
    """The credentials may not do this, or were not accepted."""


class ServiceClosedError(ServiceError):
    """Google has closed AI Platform Training: this endpoint will never run the job."""


class JobFailedError(AIPTrainingError):
    """The job ended without success.

    :param job_id: the attempt that ended.
    :param state: its end state.
    :param error_message: the service's ``errorMessage``.
    """

    def __init__(self, message: str, *, job_id: str, state: str, error_message: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id
        self.state = state
        self.error_message = error_message


class JobCancelledError(JobFailedError):
    """The job was cancelled."""


class JobTimeoutError(AIPTrainingError):
    """The job's deadline passed; it was cancelled."""


class GateNotPassedError(AIPTrainingError):
    """A model isn't whole, isn't new, or a condition on its metrics doesn't hold."""
