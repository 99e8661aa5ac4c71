"""The records that the verdict reads: the service's own database, and what Airflow says."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from airflow_api import AirflowApi, AirflowApiError
from cluster import AirflowCluster
from service import EmbeddedService
from verdict import JobRecord, TaskRecord, Verdict

from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.core.task_keys import TaskKey


def jobs_of(service: EmbeddedService) -> list[JobRecord]:
    """Return what the service's own database says, past its API."""
    rows = _rows(
        service.data / "jobs.sqlite",
        "SELECT job_id, state, labels, create_time, start_time, end_time, error_message"
        " FROM jobs ORDER BY number",
    )
    return [
        JobRecord(job_id, state, TaskKey.from_labels(json.loads(labels)), *times, error[:500])
        for job_id, state, labels, *times, error in rows
    ]


def tasks_of_running_jobs(service: EmbeddedService) -> list[TaskKey]:
    """Return what the jobs that run now are for; nothing if it can't be read just now."""
    return [job.task for job in _jobs_now(service, JobState.RUNNING) if job.task]


def count_jobs(service: EmbeddedService, state: JobState) -> int:
    """Return how many jobs are in this state; 0 if it can't be read just now."""
    return len(_jobs_now(service, state))


def _jobs_now(service: EmbeddedService, state: JobState) -> list[JobRecord]:
    # It may have been killed in a transaction, which it takes back when it is started again.
    with contextlib.suppress(sqlite3.OperationalError):
        return [job for job in jobs_of(service) if job.state == state]
    return []


def count_queued(airflow: AirflowCluster, seconds: float) -> int:
    """Return how many task instances have been queued for so long, in seconds; 0 if unknown."""
    limit = datetime.now(UTC) - timedelta(seconds=seconds)
    query = "SELECT count(*) FROM task_instance WHERE state = 'queued' AND queued_dttm < ?"
    # A process that is frozen now may have locked it.
    with contextlib.suppress(sqlite3.OperationalError):
        path = airflow.home / "airflow.db"
        [(count,)] = _rows(path, query, limit.strftime("%Y-%m-%d %H:%M:%S.%f"))
        return int(count)
    return 0


def run_states(api: AirflowApi, dag_id: str) -> dict[str, str]:
    """Return the state of each run.  Airflow may be down, so nothing is asked twice.

    :raises AirflowApiError: an error is the answer.
    :raises httpx.HTTPError: there is none.
    """
    path = f"/api/v2/dags/{dag_id}/dagRuns"
    states: dict[str, str] = {}
    while True:
        page = {"limit": 100, "offset": len(states)}
        found = api.call_once("GET", path, params=page, timeout=3)["dag_runs"]
        states |= {run["dag_run_id"]: run["state"] for run in found}
        if len(found) < 100:
            return states


def tasks_of(api: AirflowApi, dag_id: str) -> Iterator[TaskRecord]:
    """Give what Airflow says of every task instance."""
    mismatches = Counter(
        (entry["run_id"], entry["task_id"], entry["map_index"])
        for entry in _pages(api, "/eventLogs", "event_logs", dag_id=dag_id, event="state mismatch")
    )
    instances = _pages(api, f"/dags/{dag_id}/dagRuns/~/taskInstances", "task_instances")
    for ti in instances:
        run_id, task_id, map_index = ti["dag_run_id"], ti["task_id"], ti["map_index"]
        job = ""
        if ti["state"] == "success":
            with contextlib.suppress(AirflowApiError):
                result = api.xcom(dag_id, run_id, task_id, map_index=map_index)
                job = (result or {}).get("job_id", "")
        yield TaskRecord(
            TaskKey(dag_id, task_id, run_id, map_index),
            ti["state"],
            ti["try_number"],
            ti["max_tries"],
            job,
            mismatches[run_id, task_id, map_index],
        )


def add_logs(api: AirflowApi, verdict: Verdict) -> None:
    """Add the ends of the logs of all tries to the tasks that broke a rule."""
    for found in [*verdict.violations, *verdict.raced]:
        if task := found["task"]:
            key = TaskKey(**task["key"])
            logs = {}
            for number in range(1, task["tries"] + 1):
                try:
                    text = api.log(key.dag_id, key.run_id, key.task_id, number, key.map_index)
                except (AirflowApiError, httpx.HTTPError) as error:
                    text = f"(no log: {error})"
                logs[number] = text[-2500:]
            found["logs"] = logs


def _rows(path: Path, query: str, *parameters: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return database.execute(query, parameters).fetchall()


def _pages(api: AirflowApi, path: str, name: str, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = api.get(path, limit=100, offset=len(found), **params)[name]
        found += page
        if len(page) < 100:
            return found
