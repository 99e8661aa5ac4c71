"""The chaos suite's judgement finds what it is there for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chaos.verdict import (
    CLEARED,
    MARKED_FAILED,
    JobRecord,
    PersonsEvent,
    TaskRecord,
    Verdict,
    judge,
)

from airflow_aiptraining.core.task_keys import TaskKey

KEY = TaskKey("chaos", "train", "run")
TASK = TaskRecord(KEY, "success", 2, 100, "train_a002")
FAILED = JobRecord("train", "FAILED", KEY, 0, 10, 20)
DONE = JobRecord("train_a002", "SUCCEEDED", KEY, 19, 20, 30)


CLEAR = PersonsEvent(CLEARED, "running", 15, answered=True)
CANCELLED = JobRecord("train", "CANCELLED", KEY, 0, 10, 18)
MARK = PersonsEvent(MARKED_FAILED, "running", 15, answered=True)
GIVEN_UP = TaskRecord(KEY, "failed", 1, 100)


def judged(
    *jobs: JobRecord,
    task: TaskRecord = TASK,
    expected: int = 1,
    meant: int = 1,
    event: PersonsEvent | None = None,
) -> Verdict:
    return judge(
        jobs,
        [task],
        expected=expected,
        failures_meant={("train", -1): meant},
        events={KEY: event} if event else {},
    )


def rules(*jobs: JobRecord, event: PersonsEvent, task: TaskRecord = TASK) -> list[str]:
    verdict = judged(*jobs, task=task, meant=0, event=event)
    return [found["rule"] for found in verdict.violations]


def test_attempts_one_after_the_other_break_no_rule() -> None:
    verdict = judged(FAILED, DONE)

    assert verdict.violations == []
    assert verdict.attempts == {2: 1}


@pytest.mark.parametrize(
    ("jobs", "rule"),
    [
        ((FAILED,), "0 SUCCEEDED jobs, not one"),
        ((FAILED, DONE, replace(DONE, job_id="again", started=31, ended=40)), "2 SUCCEEDED jobs"),
        ((FAILED, replace(DONE, started=19)), "train_a002 started while train ran"),
        ((replace(FAILED, ended=None), DONE), "train_a002 started while train ran"),
        ((FAILED, DONE, replace(FAILED, job_id="x", state="QUEUED")), "x is still QUEUED"),
        ((FAILED, DONE, replace(FAILED, job_id="x", state="CANCELLED")), "x was cancelled"),
        ((FAILED, DONE, replace(FAILED, job_id="x", task=None)), "a job of no task"),
        ((replace(FAILED, started=None), DONE, replace(FAILED)), "2 FAILED jobs, 1 were to fail"),
    ],
)
def test_broken_rule_is_told(jobs: tuple[JobRecord, ...], rule: str) -> None:
    assert any(found["rule"].startswith(rule) for found in judged(*jobs).violations)


def test_green_task_must_name_the_job_that_succeeded() -> None:
    task = replace(TASK, result_job="train")

    assert [v["rule"] for v in judged(FAILED, DONE, task=task).violations] == [
        "the task's result names train"
    ]


def test_failed_task_over_a_succeeded_job_is_a_violation_but_for_airflows_own_race() -> None:
    task = replace(TASK, state="failed")

    assert len(judged(FAILED, DONE, task=task).violations) == 1
    raced = judged(FAILED, DONE, task=replace(task, mismatches=1))
    assert (raced.violations, len(raced.raced)) == ([], 1)


def test_missing_task_instance_is_told() -> None:
    assert judged(FAILED, DONE, expected=2).violations[0]["rule"] == "1 task instances, not 2"


@pytest.mark.parametrize(
    "jobs",
    [
        (CANCELLED, DONE),
        (replace(CANCELLED, state="SUCCEEDED"), DONE),
        # The try that was cleared had not got as far as a job.
        (DONE,),
    ],
)
def test_cleared_task_may_train_once_more(jobs: tuple[JobRecord, ...]) -> None:
    assert rules(*jobs, event=CLEAR) == []


@pytest.mark.parametrize(
    ("jobs", "rule"),
    [
        (
            (CANCELLED, DONE, replace(DONE, job_id="train_a003", started=31)),
            "3 jobs for a task that was cleared once",
        ),
        ((CANCELLED, replace(DONE, started=17)), "train_a002 started while train ran"),
        ((replace(CANCELLED, ended=14), DONE), "train was cancelled before its task was cleared"),
        ((CANCELLED, replace(CANCELLED, job_id="b")), "2 jobs were cancelled, for one clear"),
        ((replace(DONE, created=9),), "no job that was made after the clear has SUCCEEDED"),
        (
            (DONE, replace(DONE, job_id="train_a003", created=30, started=31, ended=40)),
            "the task's result names train_a002, not its last one",
        ),
        ((FAILED, DONE), "1 FAILED jobs, 0 were to fail"),
    ],
)
def test_broken_rule_of_a_cleared_task_is_told(jobs: tuple[JobRecord, ...], rule: str) -> None:
    assert any(found.startswith(rule) for found in rules(*jobs, event=CLEAR))


def test_job_made_before_a_clear_whose_answer_was_lost_may_be_the_only_one() -> None:
    job = replace(DONE, created=9)

    assert rules(job, event=replace(CLEAR, answered=False)) == []


@pytest.mark.parametrize("jobs", [(), (CANCELLED,), (replace(DONE, created=9),)])
def test_task_marked_failed_may_have_one_job_that_ended(jobs: tuple[JobRecord, ...]) -> None:
    assert rules(*jobs, task=GIVEN_UP, event=MARK) == []


@pytest.mark.parametrize(
    ("jobs", "task", "rule"),
    [
        ((replace(CANCELLED, state="RUNNING", ended=None),), GIVEN_UP, "train is still RUNNING"),
        ((CANCELLED, DONE), GIVEN_UP, "2 jobs, at most 1 are right"),
        ((DONE,), TASK, "the task was marked failed and is success"),
        ((replace(CANCELLED, ended=14),), GIVEN_UP, "train was cancelled before its task was mark"),
        ((FAILED,), GIVEN_UP, "1 FAILED jobs, 0 were to fail"),
    ],
)
def test_broken_rule_of_a_task_marked_failed_is_told(
    jobs: tuple[JobRecord, ...], task: TaskRecord, rule: str
) -> None:
    assert any(found.startswith(rule) for found in rules(*jobs, task=task, event=MARK))


def test_task_that_airflow_never_marked_failed_is_judged_as_wanted() -> None:
    lost = replace(MARK, answered=False)

    assert rules(DONE, event=lost) == []
    assert "train was cancelled though its task was wanted" in rules(CANCELLED, DONE, event=lost)
