"""Finds jobs that nobody counts on any more, and cancels those that stay so.

The rule is in :mod:`airflow_aiptraining.core.reaping`.  Between the two looks nothing is written on
the jobs: services differ in what they let a client change there (Vertex AI: nothing), so whoever
reaps remembers its suspects itself.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_aiptraining.core.reaping import TaskState, Verdict, claim, judge
from airflow_aiptraining.core.task_keys import TaskKey
from airflow_aiptraining.exceptions import JobNotFoundError, ServiceError
from airflow_aiptraining.services.ml_v1 import MLv1Service
from airflow_aiptraining.services.retries import PATIENCE, patiently

log = logging.getLogger(__name__)

#: In the order in which a job goes through them, so that one that moves on meanwhile isn't missed.
_ACTIVE_STATES = ("QUEUED", "PREPARING", "RUNNING")


@dataclass(frozen=True)
class Finding:
    """What was found out about one active job.

    :param task: ``None`` where the job doesn't say, or it isn't this deployment's.
    """

    job: dict[str, Any]
    task: TaskKey | None
    verdict: Verdict

    @property
    def job_id(self) -> str:
        """The job's id."""
        return str(self.job["jobId"])

    def __str__(self) -> str:
        task = f" ({self.task})" if self.task else ""
        return f"Job {self.job_id}{task} is {self.job.get('state')}: {self.verdict}."


class Reaper:
    """Looks at the jobs of one project at one service.

    :param service: where they run.
    :param deployment: names this Airflow; see :attr:`AIPTrainingHook.deployment`.
    :param state_of: asks this Airflow for a task instance's state.
    """

    def __init__(
        self, service: MLv1Service, deployment: str, state_of: Callable[[TaskKey], TaskState]
    ) -> None:
        self._service = service
        self._deployment = deployment
        self._state_of = state_of

    def look(self) -> list[Finding]:
        """Return what is to be said of each active job."""
        findings = [self._examine(job) for job in active_jobs(self._service)]
        counts = Counter(str(finding.verdict) for finding in findings)
        log.info(
            "%d active jobs in project %r. %s",
            len(findings),
            self._service.project_id,
            " ".join(f"{count}: {verdict}." for verdict, count in sorted(counts.items())),
        )
        return findings

    def reap(self, suspects: Collection[str]) -> tuple[list[str], list[str]]:
        """Look at the suspects of an earlier look again, and cancel those that still are.

        :param suspects: job ids.
        :return: ids of the jobs that were cancelled, and what went wrong with others.
        """
        cancelled, problems = [], []
        for job_id in sorted(suspects):
            try:
                if self._cancel_if_orphan(job_id):
                    cancelled.append(job_id)
            except ServiceError as error:
                # The others' bills run on, too.
                log.error("Job %s was not cancelled: %s", job_id, error)
                problems.append(f"{job_id}: {error}")
        return cancelled, problems

    def _cancel_if_orphan(self, job_id: str) -> bool:
        try:
            job = patiently(lambda: self._service.get_job(job_id))
        except JobNotFoundError:
            log.info("Job %s is gone.", job_id)
            return False
        finding = self._examine(job)
        log.info("%s", finding)
        if not finding.verdict.is_orphan:
            return False
        try:
            patiently(lambda: self._service.cancel_job(job_id))
        except ServiceError as error:
            # 400: it ended in the meantime.
            if error.status != 400:
                raise
            return False
        log.info("Job %s is being cancelled.", job_id)
        return True

    def _examine(self, job: dict[str, Any]) -> Finding:
        task = claim(job, self._deployment)
        if isinstance(task, Verdict):
            return Finding(job, None, task)
        return Finding(job, task, judge(self._state_of(task), self._deployment))


def active_jobs(service: MLv1Service, *, patience: float = PATIENCE) -> Iterator[dict[str, Any]]:
    """Yield every active job once.

    :param patience: seconds to bear with a service that doesn't answer.
    """
    seen = set()
    for state in _ACTIVE_STATES:
        # A generator can't go on after an error, so a state's jobs are read as a whole.
        for job in patiently(partial(_jobs_in, service, state), patience=patience):
            if job["jobId"] not in seen:
                seen.add(job["jobId"])
                yield job


def _jobs_in(service: MLv1Service, state: str) -> list[dict[str, Any]]:
    return list(service.list_jobs(f"state:{state}"))
