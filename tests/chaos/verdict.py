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
) -> Verdict:
    """Return what is wrong.

    :param expected: number of task instances that there should be.
    :param failures_meant: task id and map index → how many attempts are to fail by themselves.
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
        for rule in _broken_rules(task, mine, meant):
            _note(verdict, rule, task, mine)
        if task.state == "failed" and task.mismatches and _succeeded(mine):
            verdict.raced.append(_facts(task, mine))
    verdict.attempts = dict(sorted(Counter(len(found) for found in of_task.values()).items()))
    return verdict


def _broken_rules(task: TaskRecord, jobs: Sequence[JobRecord], meant: int) -> Iterable[str]:
    succeeded = _succeeded(jobs)
    if len(succeeded) != 1:
        yield f"{len(succeeded)} SUCCEEDED jobs, not one"
    yield from _overlaps(jobs)
    for job in jobs:
        if not JobState(job.state).is_terminal:
            yield f"{job.job_id} is still {job.state}"
        # Nobody gave up a task here, and trainers fail only where it is meant.
        if job.state == JobState.CANCELLED:
            yield f"{job.job_id} was cancelled though its task was wanted"
    failed = sum(job.state == JobState.FAILED for job in jobs)
    if failed != meant:
        yield f"{failed} FAILED jobs, {meant} were to fail"
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


def _note(verdict: Verdict, rule: str, task: TaskRecord | None, jobs: Sequence[JobRecord]) -> None:
    verdict.violations.append({"rule": rule, **_facts(task, jobs)})


def _facts(task: TaskRecord | None, jobs: Sequence[JobRecord]) -> dict[str, Any]:
    return {
        "task": None if task is None else {"name": str(task.key), **asdict(task)},
        "jobs": [{**asdict(job), "task": str(job.task)} for job in jobs],
    }
