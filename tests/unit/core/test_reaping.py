"""Which jobs nobody counts on: one test for each row."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_aiptraining.core.attempts import Stamp, job_labels
from airflow_aiptraining.core.reaping import Absent, TaskState, Verdict, claim, judge
from airflow_aiptraining.core.task_keys import TaskKey

TASK = TaskKey("Retrain.Daily", "train", "manual__2026-11-14T00:00:00+00:00", 3)


def job(state: str = "RUNNING", deployment: str = "prod", **labels: str | None) -> dict[str, Any]:
    """Return a job as the operator submits it, some labels changed or (``None``) taken away."""
    made = job_labels(
        deployment=deployment, task=TASK, spec="s", stamp=Stamp(1), keep=labels.pop("keep", False)
    )
    changed = {f"airflow-{name}": value for name, value in labels.items()}
    kept = {name: value for name, value in {**made, **changed}.items() if value is not None}
    return {"jobId": "a", "state": state, "labels": kept}


@pytest.mark.parametrize("state", ["QUEUED", "PREPARING", "RUNNING"])
def test_active_job_of_ours_leads_to_its_task(state: str) -> None:
    assert claim(job(state), "prod") == TASK


@pytest.mark.parametrize(
    "state", ["CANCELLING", "CANCELLED", "SUCCEEDED", "FAILED", "STATE_UNSPECIFIED", "NEW_STATE"]
)
def test_job_that_is_not_active_is_left(state: str) -> None:
    assert claim(job(state), "prod") is Verdict.NOT_ACTIVE


@pytest.mark.parametrize("deployment", ["dev", "", "PROD"])
def test_job_of_another_deployment_is_left(deployment: str) -> None:
    assert claim(job(deployment="prod"), deployment) is Verdict.FOREIGN


def test_job_that_no_airflow_submitted_is_left() -> None:
    assert claim({"jobId": "a", "state": "RUNNING"}, "") is Verdict.FOREIGN


def test_job_whose_ids_are_anothers_is_left() -> None:
    stolen = TaskKey("Another.Daily", TASK.task_id, TASK.run_id, 3).to_labels()
    labels = {name.removeprefix("airflow-"): value for name, value in stolen.items()}

    assert claim(job(**labels), "prod") is Verdict.FOREIGN


def test_job_without_ids_is_left() -> None:
    labels = {name.removeprefix("airflow-"): None for name in TASK.to_labels()}

    assert claim(job(**labels), "prod") is Verdict.UNTRACEABLE


def test_job_that_may_outlive_its_task_is_left() -> None:
    """Of a task with wait_for_completion=False or cancel_on_kill=False."""
    assert claim(job(keep=True), "prod") is Verdict.KEPT


@pytest.mark.parametrize("state", ["success", "failed", "skipped", "upstream_failed", "removed"])
def test_job_whose_task_has_ended_is_an_orphan(state: str) -> None:
    assert judge(state, "prod") is Verdict.ENDED
    assert judge(state, "").is_orphan


@pytest.mark.parametrize(
    "state",
    [
        None,
        "scheduled",
        "queued",
        "running",
        "restarting",
        "deferred",
        "up_for_retry",
        "up_for_reschedule",
        "awaiting_input",
        "a_state_of_next_year",
    ],
)
def test_job_whose_task_goes_on_is_left(state: TaskState) -> None:
    verdict = judge(state, "prod")

    assert verdict is Verdict.COUNTED_ON
    assert not verdict.is_orphan


def test_job_whose_task_has_no_state_in_a_run_that_has_ended_is_an_orphan() -> None:
    assert judge(Absent.RUN_ENDED, "prod") is Verdict.ENDED


def test_job_whose_task_instance_is_gone_is_an_orphan() -> None:
    assert judge(Absent.GONE, "prod") is Verdict.GONE
    assert Verdict.GONE.is_orphan


@pytest.mark.parametrize(
    ("state", "deployment", "verdict"),
    [
        (Absent.GONE, "", Verdict.UNNAMED),
        (Absent.DAG_UNKNOWN, "prod", Verdict.DAG_UNKNOWN),
        (Absent.NO_ANSWER, "prod", Verdict.NO_ANSWER),
    ],
)
def test_job_is_left_where_airflow_can_not_be_sure(
    state: TaskState, deployment: str, verdict: Verdict
) -> None:
    assert judge(state, deployment) is verdict
    assert not verdict.is_orphan
