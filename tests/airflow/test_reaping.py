"""Orphans made as Airflow makes them, found and cancelled on a real Airflow."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow_rows import change_task
from cluster import AirflowCluster
from google.auth.credentials import AnonymousCredentials
from processes import wait_for
from service import PROJECT, EmbeddedService
from work import Work

from airflow_aiptraining.services.ml_v1 import MLv1Service

DAG = "Never.Ends"
ACTIVE = ("QUEUED", "PREPARING", "RUNNING")


@pytest.fixture
def never_ends(airflow: AirflowCluster, service: EmbeddedService) -> Iterator[None]:
    airflow.api.wait_for_dags([DAG, "reap_now"])
    airflow.api.unpause(DAG)
    airflow.api.unpause("reap_now")
    yield
    airflow.components["triggerer"].start()
    for run in airflow.api.runs(DAG):
        run_path = f"/api/v2/dags/{DAG}/dagRuns/{run['dag_run_id']}"
        airflow.api.call("PATCH", run_path, json={"state": "failed"})
    for job_id in active(service):
        ml(service).cancel_job(job_id)


def ml(service: EmbeddedService) -> MLv1Service:
    """Return its jobs' API."""
    return MLv1Service(PROJECT, AnonymousCredentials(), api_endpoint=service.url)


def active(service: EmbeddedService) -> list[str]:
    """Return the ids of this module's active jobs."""
    mine = ("never_ends_", "is_left_")
    jobs = [job for job in service.jobs() if job["jobId"].startswith(mine)]
    return sorted(job["jobId"] for job in jobs if job["state"] in ACTIVE)


def aiptraining(airflow: AirflowCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``aiptraining jobs`` where this Airflow's own commands run."""
    return subprocess.run(
        [sys.executable, "-m", "airflow_aiptraining.cli", "jobs", *arguments],
        env=airflow.env,
        cwd=airflow.home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def deferred_job(airflow: AirflowCluster, run_id: str) -> str:
    """Start a run; return its job's id when the task that waits for it is deferred."""
    airflow.api.trigger(DAG, run_id=run_id)
    airflow.api.wait_for_task(DAG, run_id, "train", states=frozenset({"deferred"}))
    airflow.api.wait_for_task(DAG, run_id, "leave")
    return str(airflow.api.xcom(DAG, run_id, "train", key="job_id"))


def test_reaper_cancels_orphans_and_nothing_else(
    airflow: AirflowCluster, service: EmbeddedService, never_ends: None
) -> None:
    waited_for = deferred_job(airflow, "Waited:For+1")
    marked = deferred_job(airflow, "Marked:Failed+1")
    deleted = deferred_job(airflow, "Deleted:Later+1")
    unclear = deferred_job(airflow, "Clear:Lost+1")
    kept = str(airflow.api.xcom(DAG, "Waited:For+1", "leave", key="job_id"))

    # With no triggerer alive nobody cancels the jobs of tasks that are given up.
    triggerer = airflow.components["triggerer"]
    triggerer.send(signal.SIGKILL)
    wait_for(lambda: not triggerer.is_running(), timeout=10, what="the triggerer to end")
    for run_id in ("Marked:Failed+1", "Deleted:Later+1", "Clear:Lost+1"):
        airflow.api.set_state(DAG, run_id, "train", "failed")
        airflow.api.wait_for_run(DAG, run_id)
    # A triggerer that comes back soon would see what it had, and cancel the jobs.
    change_task(Work(airflow, service, DAG, "Marked:Failed+1"), trigger_id=None)
    # Cleared before the scheduler has failed the run: Airflow can lose that.
    change_task(Work(airflow, service, DAG, "Clear:Lost+1"), trigger_id=None, state=None)
    airflow.api.call("DELETE", f"/api/v2/dags/{DAG}/dagRuns/Deleted:Later+1")
    assert {waited_for, marked, deleted, unclear, kept} <= set(active(service))

    listed = aiptraining(airflow, "list")
    assert f"{marked}  " in listed.stdout, listed.stderr
    assert "Never.Ends.train of run Marked:Failed+1" in listed.stdout

    looked = aiptraining(airflow, "reap")
    orphans = {line.split()[2] for line in looked.stdout.splitlines() if line.startswith("orphan")}
    assert orphans == {marked, deleted, unclear}, looked.stderr
    assert looked.returncode == 0
    assert f"left: Job {waited_for} " in looked.stderr
    assert orphans <= set(active(service))

    triggerer.start()
    airflow.wait_until_healthy()
    reaped = airflow.api.trigger("reap_now")
    run = airflow.api.wait_for_run("reap_now", reaped)
    log = airflow.api.log("reap_now", reaped, "reap")
    assert run["state"] == "success", log
    result = airflow.api.xcom("reap_now", reaped, "reap")
    assert sorted(result["suspected"]) == sorted(result["cancelled"]) == sorted(orphans)

    left = set(active(service))
    assert {waited_for, kept} <= left
    assert not orphans & left
    assert airflow.api.task_states(DAG, "Waited:For+1")["train"] == "deferred"

    again = aiptraining(airflow, "reap", "--cancel", "--grace", "0")
    assert (again.returncode, again.stdout) == (0, "")
    assert set(active(service)) == left


@pytest.mark.long
def test_command_line_of_an_airflow_that_knows_none_of_it_cancels_nothing(
    airflow: AirflowCluster, service: EmbeddedService, never_ends: None, tmp_path: Path
) -> None:
    """A wrong AIRFLOW_HOME: no task instance is there, and that is no reason to cancel."""
    job_id = deferred_job(airflow, "Elsewhere")
    other = {"AIRFLOW_HOME": str(tmp_path)}
    other["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{tmp_path}/airflow.db"
    env = {**airflow.env, **other}
    command = [sys.executable, "-m", "airflow_aiptraining.cli", "jobs", "reap", "--cancel"]

    def reap() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "--grace", "0"], env=env, capture_output=True, text=True, check=False
        )

    without_tables = reap()
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], env=env, check=True)
    empty = reap()

    assert without_tables.returncode == 1
    assert "database can't be read" in without_tables.stderr
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "this Airflow doesn't know its DAG" in empty.stderr
    assert job_id in active(service)
