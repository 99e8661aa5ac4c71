"""Submits a job exactly once: create it, or find out what became of the one that is there."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from airflow_aiptraining.core.attempts import (
    SPEC,
    TRY,
    Action,
    Ledger,
    Stamp,
    decide,
    is_ours,
    was_cleared,
)
from airflow_aiptraining.core.job_ids import WorkId, in_words
from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.core.task_keys import TaskKey
from airflow_aiptraining.exceptions import (
    JobConflictError,
    JobExistsError,
    JobNotFoundError,
    ServiceError,
    StaleTryError,
    TransientServiceError,
)
from airflow_aiptraining.operators.waiting import CANCEL_LIMIT, cancel_and_wait
from airflow_aiptraining.services.ml_v1 import MLv1Service
from airflow_aiptraining.services.retries import PATIENCE, patiently, pause_after

log = logging.getLogger(__name__)

#: Where the ledger lies in Airflow's task state store.
LEDGER_KEY = "aiptraining_ledger"
#: A job whose create was cut off may be made so many seconds later.
LATE = 10.0


class StateStore(Protocol):
    """Airflow's task state store, as far as it is used here."""

    def get(self, key: str) -> Any:
        """Return the value, or ``None``."""

    def set(self, key: str, value: Any) -> None:
        """Keep the value over retries and clears."""


@dataclass(frozen=True)
class Submitted:
    """The job of this task's current attempt.

    :param job: the Job resource as last read.
    :param service: where it runs; an attempt that was found may run elsewhere than a new one would.
    :param attempt: 1, 2, ...
    :param must_end_first: the job is being cancelled; once it has ended, :meth:`Submission.obtain`
        decides anew.  Two attempts never run at the same time.
    """

    job: dict[str, Any]
    service: MLv1Service
    attempt: int
    must_end_first: bool = False


@dataclass(frozen=True)
class Prepared:
    """A job that can be submitted: checked, its packages in the bucket.

    :param spec: value of the label ``airflow-spec``.
    :param body_of: gives the wire body of an attempt, by its id.
    """

    spec: str
    body_of: Callable[[str], dict[str, Any]]


@dataclass
class Submission:
    """One piece of work, and how to submit it.

    :param service: where new attempts go.
    :param service_at: gives the service at a ledger's place: project and endpoint.
    :param service_name: ``local``, ``ml_v1`` ...
    :param work: names the attempts.
    :param deployment: names this Airflow among others that share the project.
    :param task: the task instance.
    :param prepare: checks the job and stages its packages; called when an attempt is to be made.
    :param stamp: of this try.
    :param try_number: of this try; Airflow counts them upwards, over retries and clears.
    :param ti_id: ``ti.id`` of this try.
    :param store: keeps the ledger.
    :param cancel_on_kill: cancel an attempt whose task somebody cleared.
    :param patience: seconds to bear with a service that doesn't answer.
    """

    service: MLv1Service
    service_at: Callable[[Ledger], MLv1Service]
    service_name: str
    work: WorkId
    deployment: str
    task: TaskKey
    prepare: Callable[[], Prepared]
    stamp: Stamp
    try_number: int
    ti_id: str
    store: StateStore
    cancel_on_kill: bool
    patience: float = PATIENCE
    _sent: str = field(default="", init=False)
    _has_written: bool = field(default=False, init=False)
    #: Airflow's supervisor of this process; where it is gone, another try is at work.
    _supervisor: int = field(default_factory=os.getppid, init=False)

    def obtain(self) -> Submitted:
        """Return the job to wait for, or whose result to take; submit it if there is none.

        :raises JobConflictError: the id is another's.
        :raises StaleTryError: a later try of this task is at work.
        :raises ServiceError: the service refuses the job.
        :raises TransientServiceError: the service hasn't answered for ``patience`` seconds.  The
            next try finds what was made.
        """
        ledger = self._ledger()
        attempt = ledger.attempt if ledger else 1
        service = self.service_at(ledger) if ledger else self.service
        found = self._read_at(service, ledger) if ledger else None
        if found and ledger and not self._is_ours(found, ledger):
            # An id that was refused.  Where the author has given another one since, that counts.
            found = found if ledger.job_id == self.work.attempt(attempt) else None
        while True:
            cleared = found is not None and was_cleared(found, ledger, self.stamp)
            action = decide(
                found,
                ours=found is not None and self._is_ours(found, ledger),
                cleared=cleared,
                awaited=found is not None and self._has_awaited(found, ledger),
                cancel_on_kill=self.cancel_on_kill,
            )
            if found is not None:
                self._tell(action, found, cleared)
            match action:
                case Action.CREATE:
                    service = self.service
                    created, found = self._create(attempt)
                    if created is not None:
                        return Submitted(created, service, attempt)
                case Action.REFUSE:
                    assert found is not None
                    raise self._refusal(found)
                case Action.ATTACH | Action.TAKE_RESULT:
                    assert found is not None
                    self._adopt(found, service, attempt)
                    return Submitted(found, service, attempt)
                case Action.CANCEL | Action.WAIT:
                    assert found is not None
                    if action is Action.CANCEL:
                        found = self._cancel(service, found, attempt)
                    if not JobState.of(found).is_terminal:
                        return Submitted(found, service, attempt, must_end_first=True)
                    # It ended while it was being cancelled: decide by its end.
                case Action.NEXT_ATTEMPT:
                    attempt += 1
                    found = None

    def abandon(self) -> None:
        """Cancel what :meth:`obtain` may have submitted before it was interrupted."""
        if not self._sent or os.getppid() != self._supervisor:
            return
        log.info("Cancelling job %s, if it was made.", self._sent)
        until = time.monotonic() + LATE
        while (found := self._read(self.service, self._sent)) is None:
            if time.monotonic() > until:
                return
            time.sleep(0.5)
        if found.get("labels", {}).get(TRY) == self.stamp.label and self._is_ours(found, None):
            cancel_and_wait(self.service, self._sent, seconds=0, patience=CANCEL_LIMIT)

    @cached_property
    def _prepared(self) -> Prepared:
        return self.prepare()

    def _has_awaited(self, job: Mapping[str, Any], ledger: Ledger | None) -> bool:
        return ledger is not None and ledger.ti_id == self.ti_id and ledger.describes(job)

    def _is_ours(self, job: Mapping[str, Any], ledger: Ledger | None) -> bool:
        return is_ours(job, deployment=self.deployment, task=self.task, ledger=ledger)

    def _create(self, attempt: int) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Submit the attempt; return (the new job, None), or (None, the job that bears its id).

        A lost answer is a question, not a failure: the job is looked for before it is sent again.
        """
        job_id = self.work.attempt(attempt)
        body = self._prepared.body_of(job_id)
        # Written before the job is made: whoever comes next knows where to look.
        self._write(job_id, self.service, attempt)
        until, failures = time.monotonic() + self.patience, 0
        self._sent = job_id
        while True:
            try:
                created = self.service.create_job(body)
            except JobExistsError:
                return None, patiently(lambda: self.service.get_job(job_id), patience=self.patience)
            except TransientServiceError as error:
                failures += 1
                pause = pause_after(error, failures)
                if found := self._read(self.service, job_id):
                    return None, found
                if time.monotonic() + pause > until:
                    raise
                log.warning("%s. No job was made; sending it again in %.0f s.", error, pause)
                time.sleep(pause)
                self._ledger()
            else:
                return created, None

    def _ledger(self) -> Ledger | None:
        """Return what is written down.

        Asked before each thing that can't be taken back: a process that Airflow has lost (its
        supervisor was killed, it was frozen) may come this far while a later try is at work.
        """
        ledger = Ledger.from_json(self.store.get(LEDGER_KEY))
        if ledger is None and self._has_written:
            # What Airflow answers to a process whose task instance a clear has replaced.
            raise StaleTryError(
                "What this process wrote down is gone: somebody cleared the task, and this is a "
                f"leftover of try {self.try_number}. It submits and cancels nothing."
            )
        if ledger is not None and ledger.try_number > self.try_number:
            raise StaleTryError(
                f"Try {ledger.try_number} of this task works on job "
                f"{in_words(ledger.job_id)}; this process is a leftover of try {self.try_number}. "
                "It submits and cancels nothing."
            )
        return ledger

    def _read(self, service: MLv1Service, job_id: str) -> dict[str, Any] | None:
        try:
            return patiently(lambda: service.get_job(job_id), patience=self.patience)
        except JobNotFoundError:
            return None

    def _read_at(self, service: MLv1Service, ledger: Ledger) -> dict[str, Any] | None:
        """Return the job that the ledger names, from where it was sent."""
        try:
            return self._read(service, ledger.job_id)
        except TransientServiceError as error:
            if ledger.api_endpoint == self.service.api_endpoint:
                raise
            raise TransientServiceError(
                f"{error} The connection names {self.service.api_endpoint or 'Google'} by now, but "
                f"job {in_words(ledger.job_id)} was sent there and may run on; "
                "a retry looks again. If that endpoint is gone for good, delete the key "
                f"{LEDGER_KEY!r} from this task instance's state store, then retry.",
                status=error.status,
                reason=error.reason,
            ) from error

    def _cancel(self, service: MLv1Service, found: dict[str, Any], attempt: int) -> dict[str, Any]:
        job_id = found["jobId"]
        # Airflow refuses this write to a process whose task instance it has replaced.
        if (ledger := self._ledger()) is not None and ledger.describes(found):
            self.store.set(LEDGER_KEY, replace(ledger, try_number=self.try_number).to_json())
        else:
            self._write(job_id, service, attempt)
        try:
            patiently(lambda: service.cancel_job(job_id), patience=self.patience)
        except ServiceError as error:
            # 400: it ended in the meantime.
            if error.status != 400:
                raise
        return patiently(lambda: service.get_job(job_id), patience=self.patience)

    def _adopt(self, found: Mapping[str, Any], service: MLv1Service, attempt: int) -> None:
        self._write(found["jobId"], service, attempt, adopted=found.get("labels", {}).get(TRY, ""))

    def _write(self, job_id: str, service: MLv1Service, attempt: int, *, adopted: str = "") -> None:
        ledger = Ledger(
            attempt=attempt,
            job_id=job_id,
            service=self.service_name,
            api_endpoint=service.api_endpoint,
            project_id=service.project_id,
            stamp=self.stamp,
            adopted=adopted,
            try_number=self.try_number,
            ti_id=self.ti_id,
        )
        self._ledger()
        self.store.set(LEDGER_KEY, ledger.to_json())
        self._has_written = True

    def _tell(self, action: Action, found: Mapping[str, Any], cleared: bool) -> None:
        why = ", and somebody cleared the task" if cleared else ""
        log.info(
            "Job %s exists and is %s%s: %s.",
            found.get("jobId"),
            found.get("state"),
            why,
            _IN_WORDS[action],
        )
        if action in (Action.ATTACH, Action.TAKE_RESULT):
            self._tell_differences(found)

    def _tell_differences(self, found: Mapping[str, Any]) -> None:
        """Say what this try would submit otherwise than the job that it keeps."""
        try:
            differs = found.get("labels", {}).get(SPEC) != self._prepared.spec
            fields = self._differences(found) if differs else []
        except Exception as error:  # whatever it is: the job that is there needs none of it
            log.warning(
                "Job %s is kept, although none could be submitted now: %s", found["jobId"], error
            )
            return
        if differs:
            log.warning(
                "Job %s was submitted with other values than the DAG gives now (%s). It is kept; "
                "clear the task to train with the new ones.",
                found.get("jobId"),
                ", ".join(fields) or "its package or labels",
            )

    def _differences(self, found: Mapping[str, Any]) -> list[str]:
        """Return the fields that this try would send otherwise."""
        asked = self._prepared.body_of(found["jobId"])["trainingInput"]
        has = found.get("trainingInput", {})
        return sorted(key for key in {*asked, *has} if asked.get(key) != has.get(key))

    def _refusal(self, found: Mapping[str, Any]) -> JobConflictError:
        labels = found.get("labels", {})
        whose = ", ".join(
            f"{name} {labels[f'airflow-{name}']!r}"
            for name in ("dag", "task", "run")
            if labels.get(f"airflow-{name}")
        )
        return JobConflictError(
            f"Job {found.get('jobId')!r} (project {self.service.project_id!r}) exists already and "
            f"belongs to {whose or 'something outside this Airflow'}. Nothing was submitted. Give "
            "the operator a job_id of its own; if another Airflow uses the project, give each its "
            "own deployment name."
        )


_IN_WORDS = {
    Action.REFUSE: "it is not this task's",
    Action.ATTACH: "waiting for it",
    Action.CANCEL: "cancelling it",
    Action.WAIT: "waiting for its end",
    Action.TAKE_RESULT: "taking its result",
    Action.NEXT_ATTEMPT: "making the next attempt",
}
