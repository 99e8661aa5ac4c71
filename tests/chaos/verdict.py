"""What must hold when everything has ended: the service's own records against Airflow's states.

Pure: records in, violations out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.core.task_keys import TaskKey


@dataclass(frozen=True)
class JobRecord:
    """One job as the service keeps it.

    :param task: what it was submitted for, ``None`` where its labels don't say.
    :param created: epoch seconds, as are the others.
    """

    job_id: str
    state: str
    task: TaskKey | None
    created: float
    started: float | None
    ended: float | None
    error: str = ""


@dataclass(frozen=True)
class TaskRecord:
    """One task instance as Airflow's API tells it.

    :param result_job: the job that its result names.
    :param mismatches: how often Airflow noted that the executor's word and the state differ.
    """

    key: TaskKey
    state: str | None
    tries: int
    max_tries: int
    result_job: str = ""
    mismatches: int = 0


CLEARED = "cleared"
MARKED_FAILED = "marked failed"


@dataclass(frozen=True)
class PersonsEvent:
    """What a person did to a task instance.

    :param what: :data:`CLEARED` or :data:`MARKED_FAILED`.
    :param state: of the task instance shortly before.
    :param at: epoch seconds, just before Airflow was asked to do it.
    :param answered: Airflow said that it is done; otherwise it may be, or not.
    """

    what: str
    state: str
    at: float
    answered: bool


@dataclass
class Verdict:
    """What was found.

    :param violations: a rule, and the facts about each task that breaks it.
    :param raced: tasks that Airflow failed, in its own words for another reason than the task's
        code, although their job succeeded.
    :param attempts: how many tasks needed so many attempts.
    """

    violations: list[dict[str, Any]] = field(default_factory=list)
    raced: list[dict[str, Any]] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)


def judge(
    jobs: Iterable[JobRecord],
    tasks: Sequence[TaskRecord],
    *,
    expected: int,
    failures_meant: Mapping[tuple[str, int], int],
    events: Mapping[TaskKey, PersonsEvent] | None = None,
) -> Verdict:
    """Return what is wrong.

    :param expected: number of task instances that there should be.
    :param failures_meant: task id and map index → how many attempts are to fail by themselves.
    :param events: what people did, to some tasks, once each.
    """
    verdict = Verdict()
    of_task: dict[TaskKey, list[JobRecord]] = {task.key: [] for task in tasks}
    for job in jobs:
        if job.task in of_task:
            of_task[job.task].append(job)
        else:
            _note(verdict, "a job of no task", None, [job])
    if len(tasks) != expected:
        message = f"{len(tasks)} task instances, not {expected}"
        verdict.violations.append({"rule": message, "task": None, "jobs": []})
    for task in tasks:
        mine = sorted(of_task[task.key], key=lambda job: job.created)
        meant = failures_meant.get((task.key.task_id, task.key.map_index), 0)
        event = (events or {}).get(task.key)
        for rule in _broken_rules(task, mine, meant, event):
            _note(verdict, rule, task, mine, event)
        if task.state == "failed" and task.mismatches and _succeeded(mine):
            verdict.raced.append(_facts(task, mine, event))
    verdict.attempts = dict(sorted(Counter(len(found) for found in of_task.values()).items()))
    return verdict


def _broken_rules(
    task: TaskRecord, jobs: Sequence[JobRecord], meant: int, event: PersonsEvent | None
) -> Iterable[str]:
    yield from _overlaps(jobs)
    for job in jobs:
        if not JobState(job.state).is_terminal:
            yield f"{job.job_id} is still {job.state}"
    if event is None:
        yield from _broken_for_wanted(task, jobs, meant)
    elif event.what == CLEARED:
        yield from _broken_for_cleared(task, jobs, meant, event)
    elif task.state == "failed" or event.answered:
        yield from _broken_for_given_up(task, jobs, meant, event)
    else:  # Airflow never did what it was asked to
        yield from _broken_for_wanted(task, jobs, meant)


def _broken_for_wanted(task: TaskRecord, jobs: Sequence[JobRecord], meant: int) -> Iterable[str]:
    """Nobody gave up the task, and trainers fail only where it is meant."""
    succeeded = _succeeded(jobs)
    if len(succeeded) != 1:
        yield f"{len(succeeded)} SUCCEEDED jobs, not one"
    for job in jobs:
        if job.state == JobState.CANCELLED:
            yield f"{job.job_id} was cancelled though its task was wanted"
    failed = _count(jobs, JobState.FAILED)
    if failed != meant:
        yield f"{failed} FAILED jobs, {meant} were to fail"
    yield from _broken_by_state(task, jobs)


def _broken_for_cleared(
    task: TaskRecord, jobs: Sequence[JobRecord], meant: int, event: PersonsEvent
) -> Iterable[str]:
    """One more attempt; the one before it was cancelled, or had ended."""
    most = 1 + meant + 1
    if len(jobs) > most:
        yield f"{len(jobs)} jobs for a task that was cleared once, at most {most} are right"
    # Where no answer came, nobody knows whether, and the task may have been cleared much later.
    if event.answered and not [job for job in _succeeded(jobs) if job.created >= event.at]:
        yield "no job that was made after the clear has SUCCEEDED"
    cancelled = [job for job in jobs if job.state == JobState.CANCELLED]
    if len(cancelled) > 1:
        yield f"{len(cancelled)} jobs were cancelled, for one clear"
    yield from _cancelled_too_early(cancelled, event)
    failed = _count(jobs, JobState.FAILED)
    if failed > meant:
        yield f"{failed} FAILED jobs, {meant} were to fail"
    yield from _broken_by_state(task, jobs)
    if task.state == "success" and jobs and task.result_job != jobs[-1].job_id:
        yield f"the task's result names {task.result_job or 'no job'}, not its last one"


def _broken_for_given_up(
    task: TaskRecord, jobs: Sequence[JobRecord], meant: int, event: PersonsEvent
) -> Iterable[str]:
    """No job goes on (told above), and none is made anew."""
    if task.state != "failed":
        yield f"the task was marked failed and is {task.state}"
    if len(jobs) > 1 + meant:
        yield f"{len(jobs)} jobs, at most {1 + meant} are right"
    failed = _count(jobs, JobState.FAILED)
    if failed > meant:
        yield f"{failed} FAILED jobs, {meant} were to fail"
    yield from _cancelled_too_early([job for job in jobs if job.state == JobState.CANCELLED], event)


def _cancelled_too_early(jobs: Iterable[JobRecord], event: PersonsEvent) -> Iterable[str]:
    for job in jobs:
        if (job.ended or 0) < event.at:
            yield f"{job.job_id} was cancelled before its task was {event.what}"


def _broken_by_state(task: TaskRecord, jobs: Sequence[JobRecord]) -> Iterable[str]:
    """The task's state must be true to its job's."""
    succeeded = _succeeded(jobs)
    if task.state == "success":
        if succeeded and task.result_job not in {job.job_id for job in succeeded}:
            yield f"the task's result names {task.result_job or 'no job'}"
        elif not succeeded:
            yield "a green task without a SUCCEEDED job"
    elif not (task.state == "failed" and task.mismatches and succeeded):
        yield f"the task is {task.state}, its last job {jobs[-1].state if jobs else 'not there'}"


def _overlaps(jobs: Sequence[JobRecord]) -> Iterable[str]:
    ran = sorted((job for job in jobs if job.started), key=lambda job: job.started or 0)
    for number, job in enumerate(ran):
        for later in ran[number + 1 :]:
            if job.ended is None or (later.started or 0) < job.ended:
                yield f"{later.job_id} started while {job.job_id} ran"


def _succeeded(jobs: Sequence[JobRecord]) -> list[JobRecord]:
    return [job for job in jobs if job.state == JobState.SUCCEEDED]


def _count(jobs: Iterable[JobRecord], state: JobState) -> int:
    return sum(job.state == state for job in jobs)


def _note(
    verdict: Verdict,
    rule: str,
    task: TaskRecord | None,
    jobs: Sequence[JobRecord],
    event: PersonsEvent | None = None,
) -> None:
    verdict.violations.append({"rule": rule, **_facts(task, jobs, event)})


def _facts(
    task: TaskRecord | None, jobs: Sequence[JobRecord], event: PersonsEvent | None
) -> dict[str, Any]:
    return {
        "task": None if task is None else {"name": str(task.key), **asdict(task)},
        "jobs": [{**asdict(job), "task": str(job.task)} for job in jobs],
        "events": [] if event is None else [asdict(event)],
    }
