"""Which running jobs nobody counts on any more.

Airflow can't tell a job of every end of its task: marked failed before the trigger was picked up,
a worker lost on the last try, a run deleted.  A reaper therefore looks at this deployment's active
jobs and cancels those whose task instance has ended or gone in two looks some minutes apart.  This
is its rule, a table with one row for each case; whatever isn't certain is left alone, and
``maxRunningTime`` bounds its bill.

A job says itself which task instance it is for (:mod:`.task_keys`).  Its ``airflow-owner``,
computed again from those ids and this deployment's name, proves both that the ids are right and
that the job isn't another Airflow's.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Any

from airflow_aiptraining.core.attempts import KEEP, OWNER, submitted_for
from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.core.task_keys import TaskKey

#: Seconds between the two looks.
GRACE = 600.0

#: End states of Airflow's task instances.  All others, ``restarting`` and those of a later Airflow
#: included, mean that the task goes on: its next try attaches to the job, or cancels it.
ENDED_STATES = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})

#: End states of Airflow's runs.
ENDED_RUN_STATES = frozenset({"success", "failed"})


class Absent(Enum):
    """Why there is no state of a task instance."""

    GONE = "no such task instance"
    RUN_ENDED = "none, in a run that has ended"
    DAG_UNKNOWN = "no such DAG"
    NO_ANSWER = "Airflow didn't answer"


#: A task instance's state as Airflow spells it, ``None`` before it is scheduled in a run that goes
#: on, or why there is none.
TaskState = str | None | Absent


class Verdict(StrEnum):
    """What is to be said of an active job; its text ends the sentence "it runs, and ..."."""

    ENDED = "its task has ended"
    GONE = "its task instance is gone"
    COUNTED_ON = "its task counts on it"
    KEPT = "its task lets it run on (wait_for_completion or cancel_on_kill is False)"
    FOREIGN = "it isn't this deployment's"
    UNTRACEABLE = "its labels don't say which task instance it is for"
    UNNAMED = "its task instance is gone, but without a deployment name it may be another Airflow's"
    DAG_UNKNOWN = "this Airflow doesn't know its DAG"
    NO_ANSWER = "Airflow doesn't say whether its task goes on"
    NOT_ACTIVE = "it has ended or is about to"

    @property
    def is_orphan(self) -> bool:
        """True if nobody counts on the job."""
        return self in (Verdict.ENDED, Verdict.GONE)


def claim(job: Mapping[str, Any], deployment: str) -> TaskKey | Verdict:
    """Return the task instance to ask Airflow about, or why the job is left alone anyway.

    :param job: the Job resource.
    :param deployment: names this Airflow; empty where it has no name.
    """
    labels = job.get("labels") or {}
    if not JobState.of(job).is_active:
        return Verdict.NOT_ACTIVE
    if OWNER not in labels:
        return Verdict.FOREIGN
    if TaskKey.from_labels(labels) is None:
        return Verdict.UNTRACEABLE
    task = submitted_for(job, deployment)
    if task is None:
        return Verdict.FOREIGN
    return Verdict.KEPT if KEEP in labels else task


def judge(state: TaskState, deployment: str) -> Verdict:
    """Return what is to be said of a job whose task instance is in that state.

    A job of an older attempt is judged by its task instance like any other: while that goes on, a
    newer attempt is only made after the older one's end, so there is nothing to reap.

    :param deployment: as in :func:`claim`.  Two Airflows without names look the same: a task
        instance that this one doesn't have may be the other's.
    """
    match state:
        case Absent.NO_ANSWER:
            return Verdict.NO_ANSWER
        case Absent.DAG_UNKNOWN:
            return Verdict.DAG_UNKNOWN
        case Absent.RUN_ENDED:
            # Marked failed and cleared within a second: Airflow can lose the clear.
            return Verdict.ENDED
        case Absent.GONE:
            return Verdict.GONE if deployment else Verdict.UNNAMED
    return Verdict.ENDED if state in ENDED_STATES else Verdict.COUNTED_ON
