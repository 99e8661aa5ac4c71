"""Exactly one paid job for each piece of work: who owns a job, and what to do with one that exists.

A task instance (dag, task, run, map index) is one piece of work; each job submitted for it is an
attempt with its own id.  Before anything is submitted, the job that bears the attempt's id, if
there is one, is put through :func:`decide`, a table with one row for each case.  What this try
knows of earlier ones stands in the :class:`Ledger`, which Airflow keeps over retries and clears,
and in labels on the job itself, for when the ledger is lost.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.core.task_keys import TaskKey

LEDGER_VERSION = 1

OWNER = "airflow-owner"
SPEC = "airflow-spec"
TRY = "airflow-try"
DAG = "airflow-dag"
TASK = "airflow-task"
RUN = "airflow-run"
#: On jobs that may outlive their task: no reaper takes them.
KEEP = "airflow-keep"
#: Labels that begin like this are the operator's; an author's own may not.
RESERVED_PREFIX = "airflow-"

_MAX_LABEL = 63


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def label_value(text: str) -> str:
    """Return ``text`` as a legal, readable label value: lower case, at most 63 characters."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-_")[:_MAX_LABEL]


def owner_label(deployment: str, dag_id: str, task_id: str, run_id: str, map_index: int) -> str:
    """Return the value of ``airflow-owner``: the work that a job was submitted for.

    :param deployment: names this Airflow among others that share the project.
    """
    return _digest(deployment, dag_id, task_id, run_id, str(map_index))


def spec_label(body: Mapping[str, Any]) -> str:
    """Return the value of ``airflow-spec``: the fingerprint of what was asked for.

    :param body: the wire body before ``{job_id}`` is filled in, without ``jobId`` and labels.
        Package URIs are addressed by content, so it covers the code as well.
    """
    asked = {key: value for key, value in body.items() if key not in ("jobId", "labels")}
    return _digest(json.dumps(asked, sort_keys=True, separators=(",", ":")))


def job_labels(
    *, deployment: str, task: TaskKey, spec: str, stamp: Stamp, keep: bool = False
) -> dict[str, str]:
    """Return the labels that the operator puts on a job: for itself, for a reaper, for people.

    :param deployment: see :func:`owner_label`.
    :param keep: the job may run on when its task has ended.
    """
    return {
        OWNER: _owner_of(task, deployment),
        SPEC: spec,
        TRY: stamp.label,
        DAG: label_value(task.dag_id),
        TASK: label_value(task.task_id),
        RUN: label_value(task.run_id),
        **({KEEP: "yes"} if keep else {}),
        **task.to_labels(),
    }


@dataclass(frozen=True)
class Stamp:
    """What a clear changes and a retry doesn't (measured on Airflow 3.3).

    :param max_tries: ``ti.max_tries``; a clear raises it, mostly.
    :param traceparent: of ``ti.context_carrier``; a clear makes a new one.  Empty where unknown.
    """

    max_tries: int
    traceparent: str = ""

    def differs(self, other: Stamp) -> bool:
        """Tell whether somebody cleared the task between the two."""
        if self.max_tries != other.max_tries:
            return True
        # An absent carrier is "unknown", not "changed".
        known = self.traceparent and other.traceparent
        return bool(known and self.traceparent != other.traceparent)

    @property
    def label(self) -> str:
        """The value of ``airflow-try``."""
        return _digest(str(self.max_tries), self.traceparent)


@dataclass(frozen=True)
class Ledger:
    """What is written down before a job is created, and read by the next try.

    :param attempt: 1, 2, ...: the attempt that ``job_id`` names.
    :param job_id: of that attempt.
    :param service: ``ml_v1``, ``local`` or ``vertex_ai``: where the job was sent.  The ledger, not
        the connection, says where a running job is looked up.
    :param api_endpoint: URL of that service; empty for Google's own.
    :param project_id: the project it was sent to.
    :param region: the region it was sent to; empty where the service has none.
    :param resource_name: the service's own name of the job, where it isn't the job id.
    :param stamp: of the try that submitted it.
    :param adopted: ``airflow-try`` of a job that another try submitted and this one waits for.
    :param try_number: of the try that wrote this; 0 where an earlier version did.
    :param ti_id: ``ti.id`` of that try.  Airflow gives each retry and each clear another one, but
        not when it calls ``execute`` again for a try that goes on (measured on 3.3).
    """

    attempt: int
    job_id: str
    service: str
    api_endpoint: str
    project_id: str
    stamp: Stamp
    region: str = ""
    resource_name: str = ""
    adopted: str = ""
    try_number: int = 0
    ti_id: str = ""

    def describes(self, job: Mapping[str, Any]) -> bool:
        """Tell whether ``job`` is the one that was submitted or adopted when this was written.

        The ledger is written before a job is made; a job of the same id that was there already,
        from a run that was deleted and made again, is not it.
        """
        bears = job.get("labels", {}).get(TRY)
        return self.job_id == job.get("jobId") and bears in (self.stamp.label, self.adopted)

    def proves(self, job: Mapping[str, Any]) -> bool:
        """Tell whether ``job`` is this task's own whatever name its deployment had then.

        Nobody else's job bears a stamp with a trace: that is random.
        """
        return bool(self.stamp.traceparent) and self.describes(job)

    def to_json(self) -> dict[str, Any]:
        """Return the ledger as JSON for Airflow's task state store."""
        return {"version": LEDGER_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Any) -> Ledger | None:
        """Read a ledger; ``None`` where there is none, or none that can be understood.

        Keys that this version doesn't know are left aside, so that a ledger outlives an upgrade
        and a downgrade.
        """
        if not isinstance(value, Mapping) or not isinstance(value.get("stamp"), Mapping):
            return None
        stamp = value["stamp"]
        kinds = {field.name: int if field.type == "int" else str for field in fields(cls)}
        known = {key: item for key, item in value.items() if key in kinds and key != "stamp"}
        if not all(type(item) is kinds[key] for key, item in known.items()):
            return None
        try:
            return cls(
                stamp=Stamp(int(stamp["max_tries"]), str(stamp.get("traceparent") or "")), **known
            )
        except (KeyError, TypeError, ValueError):
            return None


class Action(StrEnum):
    """What to do about an attempt's id."""

    CREATE = "create"
    REFUSE = "refuse"
    ATTACH = "attach"
    CANCEL = "cancel"  # then as WAIT
    WAIT = "wait"  # for its end, then decide again
    TAKE_RESULT = "take the result"
    NEXT_ATTEMPT = "next attempt"


def was_cleared(job: Mapping[str, Any], ledger: Ledger | None, stamp: Stamp) -> bool:
    """Tell whether a person cleared the task since ``job`` was submitted.

    :param job: the found job.
    :param ledger: what an earlier try wrote down; it counts only if it describes this job.
    :param stamp: of this try.
    :return: without a ledger: whether the job's ``airflow-try`` is another's.  A job that bears
        none is never taken silently, so it counts as cleared.
    """
    if ledger is not None and ledger.describes(job):
        return ledger.stamp.differs(stamp)
    return bool(job.get("labels", {}).get(TRY) != stamp.label)


def is_ours(
    job: Mapping[str, Any], *, deployment: str, task: TaskKey, ledger: Ledger | None
) -> bool:
    """Tell whether ``job``, which bears an id of this task's, was submitted for it.

    :param deployment: see :func:`owner_label`.
    :param ledger: what an earlier try wrote down.  It speaks for a job of a deployment that was
        renamed since.
    """
    labels = job.get("labels", {})
    owner = labels.get(OWNER)
    if owner == _owner_of(task, deployment) or (ledger is not None and ledger.proves(job)):
        return True
    # The same date in a run that was deleted: job ids are for ever, and a date has one run.  Where
    # it has no name, the run may be another Airflow's, whose job is left to go on.
    former = submitted_for(job, deployment)
    is_same_task = former is not None and replace(former, run_id=task.run_id) == task
    return is_same_task and (bool(deployment) or JobState.of(job).is_terminal)


def submitted_for(job: Mapping[str, Any], deployment: str) -> TaskKey | None:
    """Return the task instance that ``job`` was submitted for; ``None`` if it isn't this Airflow's.

    :param deployment: see :func:`owner_label`.
    """
    labels = job.get("labels") or {}
    task = TaskKey.from_labels(labels)
    if task is None or labels.get(OWNER) != _owner_of(task, deployment):
        return None
    return task


def _owner_of(task: TaskKey, deployment: str) -> str:
    return owner_label(deployment, task.dag_id, task.task_id, task.run_id, task.map_index)


def decide(
    job: Mapping[str, Any] | None,
    *,
    ours: bool,
    cleared: bool,
    awaited: bool = False,
    cancel_on_kill: bool = True,
) -> Action:
    """Return what to do, given the job that already bears the attempt's id.

    :param job: that job, or ``None`` where there is none.
    :param ours: see :func:`is_ours`.
    :param cleared: see :func:`was_cleared`.
    :param awaited: this very try waited for it already: its end, however bad, is this try's.
    :param cancel_on_kill: whether the author wants given-up jobs cancelled.
    """
    if job is None:
        return Action.CREATE
    if not ours:
        return Action.REFUSE
    state = JobState.of(job)
    if state is JobState.CANCELLING:
        return Action.WAIT
    if state is JobState.SUCCEEDED:
        return Action.NEXT_ATTEMPT if cleared else Action.TAKE_RESULT
    if state.is_terminal:
        return Action.TAKE_RESULT if awaited and not cleared else Action.NEXT_ATTEMPT
    # Active, or in a state that this version doesn't know: it may be billing.
    return Action.CANCEL if cleared and cancel_on_kill else Action.ATTACH
