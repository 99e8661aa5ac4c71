"""The chaos suite's judgement finds what it is there for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chaos.verdict import JobRecord, TaskRecord, Verdict, judge

from airflow_aiptraining.core.task_keys import TaskKey

KEY = TaskKey("chaos", "train", "run")
TASK = TaskRecord(KEY, "success", 2, 100, "train_a002")
FAILED = JobRecord("train", "FAILED", KEY, 0, 10, 20)
DONE = JobRecord("train_a002", "SUCCEEDED", KEY, 19, 20, 30)


def judged(*jobs: JobRecord, task: TaskRecord = TASK, expected: int = 1, meant: int = 1) -> Verdict:
    return judge(jobs, [task], expected=expected, failures_meant={("train", -1): meant})


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
