"""Finding the newest attempt at a piece of work, from its base and date."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_aiptraining.core.attempts import submitted_for
from airflow_aiptraining.core.job_ids import WorkId, check_base
from airflow_aiptraining.core.reaping import ENDED_STATES, Absent
from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.exceptions import InvalidJobIdError, JobNotFoundError
from airflow_aiptraining.triggers.given_up import task_state

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_aiptraining.core.task_keys import TaskKey
    from airflow_aiptraining.hooks.training import AIPTrainingHook
    from airflow_aiptraining.services.ml_v1 import MLv1Service


@dataclass(frozen=True)
class Attempt:
    """One attempt at a piece of work.

    :param job: the Job resource.
    :param work: what it is an attempt at.
    :param number: from 1.
    """

    job: Mapping[str, Any]
    work: WorkId
    number: int

    @property
    def job_id(self) -> str:
        """The job's id."""
        return str(self.job["jobId"])

    @property
    def state(self) -> JobState:
        """The job's state."""
        return JobState.of(self.job)

    @property
    def has_failed(self) -> bool:
        """Whether it ended without success."""
        return self.state.is_terminal and not self.state.is_successful

    def task_that_goes_on(self, hook: AIPTrainingHook) -> str:
        """Return the task instance that may make another attempt, with its state; empty for none.

        A retry that is still to come, or a clear, isn't the end of the work.  Only a task of this
        Airflow can be asked for; without an answer the attempt counts as the last.
        """
        task = self.task(hook)
        if task is None:
            return ""
        state = task_state(task)
        if isinstance(state, Absent) or state in ENDED_STATES:
            return ""
        return f"{task} ({state or 'not scheduled yet'})"

    def task(self, hook: AIPTrainingHook) -> TaskKey | None:
        """Return the task instance that it was submitted for; ``None`` if it isn't this Airflow's.

        :param hook: names this Airflow among others.
        """
        from airflow_aiptraining.hooks.settings import ConnectionSettingsError

        try:
            return submitted_for(self.job, hook.deployment)
        except ConnectionSettingsError:
            return None

    def cure(self, hook: AIPTrainingHook) -> str:
        """Return what a person can do about an attempt that failed."""
        task = self.task(hook)
        who = f"the task {task}" if task else "the task that trains it"
        return (
            f"This was attempt {self.number} at {self.work.attempt(1)!r}, and none is to follow: "
            f"clear {who} to train again, then this one."
        )


def work_of_date(
    context: Context, base: str, logical_date: str | datetime | None, *, map_index: int = -1
) -> WorkId:
    """Return the work that a base and a date name.

    :param logical_date: of the run that trains, ISO 8601 or a datetime; ``None`` or empty for that
        of this very run.
    :raises InvalidJobIdError: the base or the date can't be read.
    """
    if not logical_date:
        from airflow_aiptraining.operators.task_identity import work_of

        return work_of(context, base, map_index=map_index)
    if isinstance(logical_date, str):
        try:
            logical_date = datetime.fromisoformat(logical_date)
        except ValueError:
            raise InvalidJobIdError(
                f"logical_date is {logical_date!r}; write it as 2026-11-14T00:00:00+00:00."
            ) from None
    if logical_date.tzinfo is None:
        logical_date = logical_date.replace(tzinfo=UTC)
    return WorkId(check_base(base), logical_date, "", map_index)


def newest_attempt(service: MLv1Service, work: WorkId) -> Attempt | None:
    """Return the newest attempt, or ``None`` where there is none yet."""
    newest = None
    while True:
        number = newest.number + 1 if newest else 1
        try:
            newest = Attempt(service.get_job(work.attempt(number)), work, number)
        except JobNotFoundError:
            return newest
