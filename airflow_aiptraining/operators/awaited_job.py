"""The job that a task waits for: in the worker, past its deadline, and at its end."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout

from airflow_aiptraining.core.attempts import KEEP
from airflow_aiptraining.core.job_ids import in_words
from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.core.task_keys import TaskKey
from airflow_aiptraining.exceptions import JobCancelledError, JobTimeoutError, TransientServiceError
from airflow_aiptraining.operators.job_result import (
    failure,
    job_result,
    ran_too_long,
    waited_too_long,
)
from airflow_aiptraining.operators.kill_signal import KillSignal
from airflow_aiptraining.operators.waiting import (
    CANCEL_LIMIT,
    CANCEL_PATIENCE,
    cancel_and_wait,
    wait_in_worker,
)
from airflow_aiptraining.services.ml_v1 import MLv1Service
from airflow_aiptraining.triggers.given_up import task_was_given_up

log = logging.getLogger(__name__)


@dataclass
class AwaitedJob:
    """One job, on behalf of one task instance.

    :param job: the Job resource as last read; ``{"jobId": ...}`` before the first look.
    :param service: where it runs.
    :param service_name: ``local``, ``ml_v1`` ...
    :param url: where a person sees it.
    :param task: the task instance that it was submitted for.
    :param poll_interval: seconds between two looks.
    :param timeout: seconds from its creation to its deadline; ``None`` for none.
    :param cancel_on_kill: cancel it when the task was given up.
    :param kill: what a signal to this process rings.
    """

    job: dict[str, Any]
    service: MLv1Service
    service_name: str
    url: str
    task: TaskKey
    poll_interval: float
    timeout: float | None
    cancel_on_kill: bool
    kill: KillSignal
    #: Airflow's supervisor of this process.
    supervisor: int = field(default_factory=os.getppid)

    @property
    def job_id(self) -> str:
        """The attempt's id."""
        return str(self.job["jobId"])

    @property
    def has_ended(self) -> bool:
        """Whether it had ended when it was last read."""
        return JobState.of(self.job).is_terminal

    @property
    def outlives_its_task(self) -> bool:
        """Whether it was submitted to go on when its task has ended."""
        return KEEP in self.job.get("labels", {})

    @property
    def deadline(self) -> float | None:
        """Its creation and the timeout, in epoch seconds; ``None`` for none."""
        if self.timeout is None:
            return None
        try:
            created = datetime.fromisoformat(str(self.job.get("createTime"))).timestamp()
        except ValueError:
            created = time.time()
        return created + self.timeout

    def wait_for_result(self) -> dict[str, Any]:
        """Wait in the worker and return the task's result, or raise the job's failure.

        :raises JobTimeoutError: it was not done by its deadline, and was cancelled.
        :raises TransientServiceError: no answer for about five minutes; the job goes on.
        """
        self.wait(self.deadline)
        return self.result() if self.has_ended else self.time_out()

    @contextlib.contextmanager
    def cancelled_on_task_timeout(self) -> Iterator[None]:
        """Cancel the job if Airflow's ``execution_timeout`` ends what is done in here."""
        try:
            yield
        except AirflowTaskTimeout:
            if not self.has_ended and not self._is_orphaned():
                self.cancel(patience=CANCEL_LIMIT)
            raise

    def wait(self, until: float | None) -> None:
        """Wait in the worker until the job has ended.

        :param until: epoch seconds after which it isn't waited for; ``None`` for none.
        """
        while True:
            self.job = wait_in_worker(
                self.service,
                self.job,
                poll_interval=self.poll_interval,
                deadline=until,
                is_woken=lambda: self.kill.was_received,
            )
            if self.has_ended or not self.kill.was_received:
                return
            self.heed_kill()

    def heed_kill(self) -> None:
        """Cancel the job if a signal came because Airflow has given up the task.

        :raises AirflowFailException: it was given up.
        """
        if not self.kill.was_received:
            return
        self.kill.was_received = False
        if self.cancel_on_kill and is_given_up(self.task):
            self.cancel()
            raise AirflowFailException(
                f"Job {in_words(self.job_id)} was cancelled: its task was given up. Clear the task "
                "to train again."
            )
        log.info("Job %s goes on: its task was not given up.", self.job_id)

    def result(self) -> dict[str, Any]:
        """Return the result of a job that has ended, or raise its failure.

        :raises JobFailedError: it FAILED, or the service found no machine for it in time.
        :raises JobTimeoutError: the service ended it at the deadline.
        :raises AirflowFailException: somebody cancelled it; a retry would overrule them.
        """
        if JobState.of(self.job).is_successful:
            result = job_result(self.job, self.service.project_id)
            log.info("Job %s SUCCEEDED: %s", self.job_id, result)
            return result
        error = failure(
            self.job,
            self.service,
            self.service_name,
            self.url,
            cure="A retry or a clear of the task makes the next attempt.",
        )
        if not isinstance(error, JobCancelledError) or waited_too_long(self.job):
            raise error
        if self.timeout is not None and ran_too_long(self.job, self.timeout):
            # The service's own clock was faster than ours: Airflow or the network was down.
            raise JobTimeoutError(str(error)) from error
        raise AirflowFailException(str(error)) from error

    def time_out(self) -> dict[str, Any]:
        """Cancel a job whose deadline has passed; return its result if it had just succeeded.

        :raises JobTimeoutError: it had not.
        """
        if self._is_orphaned():
            raise TransientServiceError(
                f"Job {in_words(self.job_id)} is past its deadline; the supervisor of this process "
                "is gone, so cancelling it is left to the task's next try."
            )
        with self.cancelled_on_task_timeout():
            self.cancel(seconds=CANCEL_LIMIT)
        if JobState.of(self.job).is_successful:
            return self.result()
        raise JobTimeoutError(
            f"Training job {in_words(self.job_id)} in project {self.service.project_id!r} was not "
            f"done {self.timeout or 0:.0f} s after it was created; it was cancelled and is "
            f"{self.job.get('state')}. A retry makes the next attempt; raise the operator's "
            "timeout if the job needs longer."
        )

    def cancel(self, *, seconds: float = 0.0, patience: float = CANCEL_PATIENCE) -> None:
        """Cancel the job, and wait so many seconds for its end.

        :param patience: seconds to bear with a service that doesn't answer.
        """
        log.info("Cancelling job %s.", self.job_id)
        self.job = cancel_and_wait(self.service, self.job_id, seconds=seconds, patience=patience)

    def _is_orphaned(self) -> bool:
        """Tell whether Airflow's supervisor of this process is gone.

        Another try has the job by now or will soon; what it shall be, that try decides.
        """
        return os.getppid() != self.supervisor


def is_given_up(task: TaskKey) -> bool:
    """Ask Airflow whether it has given up a task instance."""
    return task_was_given_up(task.dag_id, task.run_id, task.task_id, task.map_index)
