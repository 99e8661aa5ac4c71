"""The reaper against the embedded service: which jobs it takes, and which it leaves."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from embedded import Service
from google.cloud.storage import Bucket
from tasks import TaskRun
from trainer_trees import make_tree

from airflow_aiptraining.core.reaping import Absent, TaskState, Verdict
from airflow_aiptraining.core.task_keys import TaskKey
from airflow_aiptraining.hooks.training import AIPTrainingHook
from airflow_aiptraining.operators.reap import AIPReapTrainingJobsOperator
from airflow_aiptraining.operators.reaper import Reaper
from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator
from airflow_aiptraining.services.ml_v1 import MLv1Service

CONN = "aiptraining_reaper"
TRAINER = {"trainer/__init__.py": "", "trainer/task.py": "import time; time.sleep(600)"}
_numbers = itertools.count()


@pytest.fixture
def hook(service: Service, monkeypatch: pytest.MonkeyPatch) -> AIPTrainingHook:
    extra = {
        "service": "local",
        "api_endpoint": service.url,
        "region": "europe-west1",
        # A project of its own: the reaper looks at all jobs of one.
        "project": f"reaping-{time.time_ns()}",
        "deployment": "prod",
    }
    connection = json.dumps({"conn_type": "aiptraining", "extra": extra})
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", connection)
    return AIPTrainingHook(CONN)


@pytest.fixture
def ml(hook: AIPTrainingHook) -> Iterator[MLv1Service]:
    service = hook.get_service()
    yield service
    for job in service.list_jobs():
        if job["state"] in ("QUEUED", "PREPARING", "RUNNING"):
            service.cancel_job(job["jobId"])


@pytest.fixture
def bucket(hook: AIPTrainingHook) -> Bucket:
    return hook.get_storage_client().create_bucket(f"reaping-{time.time_ns()}")


@pytest.fixture(scope="module")
def dag_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("dags"), TRAINER)


@pytest.fixture
def submit(dag_folder: Path, bucket: Bucket, ml: MLv1Service) -> Callable[..., str]:
    """Start a task of a DAG of its own; return its job's id when it has deferred."""

    def execute(dag_id: str, **arguments: Any) -> str:
        run = TaskRun(dag_folder, dag_id=dag_id)
        operator = run.operator(
            AIPTrainingJobOperator,
            package_path="trainer",
            module_name="trainer.task",
            staging_bucket=bucket.name,
            gcp_conn_id=CONN,
            deferrable=True,
            **arguments,
        )
        try:
            return str(operator.execute(run.context(operator))["job_id"])
        except TaskDeferred as deferred:
            return str(deferred.trigger.job_id)  # type: ignore[attr-defined]

    return execute


def reaper(ml: MLv1Service, deployment: str = "prod", **states: TaskState) -> Reaper:
    """Return a reaper whose Airflow knows these DAGs' task instances, and no others."""

    def state_of(task: TaskKey) -> TaskState:
        assert task == TaskKey(task.dag_id, "train", "scheduled__2026-11-14T00:00:00+00:00")
        return states.get(task.dag_id, Absent.GONE)

    return Reaper(ml, deployment, state_of)


def test_only_jobs_that_nobody_counts_on_are_suspected(
    submit: Callable[..., str], ml: MLv1Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = {dag_id: submit(dag_id) for dag_id in ("Failed", "Gone", "Deferred", "Retrying")}
    submitted["KeptDone"] = submit("KeptDone", wait_for_completion=False)
    submitted["KeptFailed"] = submit("KeptFailed", cancel_on_kill=False)
    monkeypatch.setenv("AIRFLOW__AIPTRAINING__DEPLOYMENT", "dev")
    submitted["Foreign"] = submit("Foreign")

    states: dict[str, TaskState] = {"Failed": "failed", "KeptDone": "success"}
    states |= {"Deferred": "deferred", "Retrying": "up_for_retry", "KeptFailed": "failed"}
    found = {finding.job_id: finding.verdict for finding in reaper(ml, **states).look()}

    assert {dag_id: found[job_id] for dag_id, job_id in submitted.items()} == {
        "Failed": Verdict.ENDED,
        "Gone": Verdict.GONE,
        "Deferred": Verdict.COUNTED_ON,
        "Retrying": Verdict.COUNTED_ON,
        "KeptDone": Verdict.KEPT,
        "KeptFailed": Verdict.KEPT,
        "Foreign": Verdict.FOREIGN,
    }


def test_second_look_cancels_what_is_an_orphan_still(
    submit: Callable[..., str], ml: MLv1Service
) -> None:
    failed, cleared, ended = (submit(dag_id) for dag_id in ("failed", "cleared", "ended"))
    ml.cancel_job(ended)

    cancelled, problems = reaper(ml, failed="failed", cleared="queued", ended="failed").reap(
        [failed, cleared, ended, "never_was"]
    )

    assert (cancelled, problems) == ([failed], [])
    assert ml.get_job(failed)["state"] in ("CANCELLING", "CANCELLED")
    assert ml.get_job(cleared)["state"] in ("QUEUED", "PREPARING", "RUNNING")


def test_operator_outside_a_task_leaves_every_job(
    submit: Callable[..., str], ml: MLv1Service, dag_folder: Path
) -> None:
    """There is no Airflow to ask here, and no answer is no reason to cancel."""
    job_id = submit("asks_nobody")
    run = TaskRun(dag_folder)

    result = run.execute(AIPReapTrainingJobsOperator, task_id="reap", gcp_conn_id=CONN, grace=0)

    assert result == {"active": 1, "suspected": [], "cancelled": []}
    assert ml.get_job(job_id)["state"] in ("QUEUED", "PREPARING", "RUNNING")


@pytest.mark.parametrize("grace", [-1, True, "600", None, float("nan")])
def test_grace_must_be_seconds(grace: Any) -> None:
    with pytest.raises(ValueError, match="grace must be a number of seconds"):
        AIPReapTrainingJobsOperator(task_id="reap", grace=grace)
