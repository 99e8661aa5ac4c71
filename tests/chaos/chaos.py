"""Kills processes of a real Airflow at random while it trains, and counts the jobs: ``make chaos``.

A cluster and the embedded service are started, a backfill of short jobs runs on them, and processes
are killed (kill -9) until all runs have ended.  Then the service's own records are read: for each
piece of work there must be exactly one job that succeeded, never two at a time, none left, and each
task's state must be true to its job's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "dags_examples" / "demo"))

import httpx  # noqa: E402 - after the path
from airflow_api import END_STATES, AirflowApi, AirflowApiError  # noqa: E402
from cluster import AirflowCluster  # noqa: E402
from kills import WEIGHTS, Chaos  # noqa: E402
from processes import signals_unwind, wait_for  # noqa: E402
from service import EmbeddedService  # noqa: E402
from verdict import JobRecord, TaskRecord, Verdict, judge  # noqa: E402

from airflow_aiptraining.core.states import JobState  # noqa: E402
from airflow_aiptraining.core.task_keys import TaskKey  # noqa: E402

DAG = "chaos"
BUCKET = "chaos"
FIRST_DAY = date(2000, 2, 1)
TASKS_A_RUN = 4
#: Which instances fail how often by themselves, see dags/chaos.py.
FAILURES_MEANT = {("mapped", 1): 1}
#: Airflow notices a loss after minutes by default; a test can't wait that long.
LOWERED = {
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "8",
    "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "8",
    "CORE__PARALLELISM": "4",
    # Set by the cluster for every test and the demo:
    "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every rule held."""
    options = _options(arguments)
    runs = -(-options.tasks // TASKS_A_RUN)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10_000)
    limit = options.limit or 240 + 45 * runs * options.stretch
    home = Path(tempfile.mkdtemp(prefix="aiptraining-chaos-"))
    print(f"{runs} runs of {TASKS_A_RUN} tasks, seed {seed}, at most {limit} s; {home}")
    print("lowered: " + ", ".join(f"{name}={value}" for name, value in LOWERED.items()))
    started = time.monotonic()
    service = EmbeddedService(data=home / "service", options=["--capacity", "8"])
    left: list[str] = []
    report: dict[str, Any] = {}
    with signals_unwind():
        try:
            service.start()
            service.storage_client().create_bucket(BUCKET)
            airflow = AirflowCluster(
                [Path(__file__).parent / "dags"],
                home=home / "airflow",
                env={
                    "AIRFLOW_CONN_AIPTRAINING_DEFAULT": json.dumps(service.connection(BUCKET)),
                    "AIRFLOW__AIPTRAINING__DEPLOYMENT": "chaos",
                    **{f"AIRFLOW__{name}": value for name, value in LOWERED.items()},
                },
            )
            chaos = Chaos(
                airflow, service, seed, options.pauses, downtimes=(0.5, 4.0), most=options.kills
            )
            try:
                airflow.start()
                report = _run(airflow, service, chaos, runs, options, limit)
            finally:
                left += airflow.stop()
                report["outlived_their_parents"] = chaos.end_orphans()
        finally:
            left += service.stop()
    report = {
        "seed": seed,
        "seconds": round(time.monotonic() - started),
        "lowered": LOWERED,
        **report,
        "processes_left": left,
    }
    broken = bool(report["violations"] or left)
    if options.report:
        options.report.write_text(json.dumps(report, indent=2))
    print(json.dumps(report) if options.json else _summary(report))
    if broken or options.keep:
        print(f"Records and logs: {home}")
    else:
        shutil.rmtree(home, ignore_errors=True)
    return int(broken)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos.py", description=__doc__)
    parser.add_argument("--tasks", type=int, default=20, help="task instances; default: 20")
    parser.add_argument("--seed", type=int, help="of the kills; default: another each time")
    parser.add_argument("--kills", type=int, default=10**6, help="so many at most")
    parser.add_argument(
        "--pauses",
        type=float,
        nargs=2,
        default=(3.0, 10.0),
        metavar=("FROM", "TO"),
        help="seconds between two kills; default: 3 10",
    )
    parser.add_argument("--stretch", type=int, default=1, help="factor of the trainers' 2 to 6 s")
    parser.add_argument("--limit", type=int, help="seconds that all runs may take")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, in one line")
    parser.add_argument("--report", type=Path, help="write the report to this file as well")
    parser.add_argument("--keep", action="store_true", help="keep records and logs")
    return parser.parse_args(arguments)


def _run(
    airflow: AirflowCluster,
    service: EmbeddedService,
    chaos: Chaos,
    runs: int,
    options: argparse.Namespace,
    limit: float,
) -> dict[str, Any]:
    """Run the backfill under kills and return the report."""
    airflow.api.wait_for_dags([DAG])
    airflow.api.unpause(DAG)
    last = FIRST_DAY + timedelta(days=runs - 1)
    dates = ["--from-date", str(FIRST_DAY), "--to-date", str(last)]
    conf = ["--dag-run-conf", json.dumps({"stretch": options.stretch}), "--max-active-runs", "8"]
    airflow.run_cli(["backfill", "create", "--dag-id", DAG, *dates, *conf])
    began = time.monotonic()
    chaos.begin()
    states = _wait_for_runs(airflow.api, chaos, runs, began + limit)
    seconds = round(time.monotonic() - began)
    chaos.settle()
    with contextlib.suppress(TimeoutError):
        airflow.wait_until_healthy(timeout=60)
    orphans = [job for job in _jobs(service) if not JobState(job.state).is_terminal]
    reaped = _reap(airflow)
    _wait_for_end(service)
    tasks = list(_tasks(airflow.api))
    jobs = _jobs(service)
    verdict = judge(jobs, tasks, expected=runs * TASKS_A_RUN, failures_meant=FAILURES_MEANT)
    if reaped["code"]:
        verdict.violations.append({"rule": "the reaper failed", "task": None, "jobs": []})
    _add_logs(airflow.api, verdict)
    return {
        "runs": dict(Counter(states.values())),
        "seconds_of_runs": seconds,
        "kills": chaos.by_kind(),
        "kill_list": chaos.kills,
        "tasks": dict(Counter(str(task.state) for task in tasks)),
        "tries": sum(task.tries for task in tasks),
        "jobs": dict(Counter(job.state for job in jobs)),
        "tasks_by_attempts": verdict.attempts,
        "airflow_mismatches": sum(task.mismatches for task in tasks),
        "orphans_before_reaper": [_brief(job) for job in orphans],
        "reaper": reaped,
        "failed_by_airflows_race": verdict.raced,
        "violations": verdict.violations,
    }


def _wait_for_runs(api: AirflowApi, chaos: Chaos, runs: int, until: float) -> dict[str, str]:
    """Go on killing until all runs have ended or the time is up; return their states."""
    states: dict[str, str] = {}
    asked = 0.0
    while time.monotonic() < until:
        chaos.go_on()
        if time.monotonic() - asked > 1.5:
            asked = time.monotonic()
            with contextlib.suppress(httpx.HTTPError, AirflowApiError):
                states = _run_states(api)
                if len(states) == runs and set(states.values()) <= END_STATES:
                    return states
        time.sleep(0.1)
    print("The time is up; runs have not ended.")
    return states


def _run_states(api: AirflowApi) -> dict[str, str]:
    # Not api.get: its patience would hold up the kills.
    client = api._client
    states: dict[str, str] = {}
    while True:
        answer = client.get(
            f"/api/v2/dags/{DAG}/dagRuns", params={"limit": 100, "offset": len(states)}, timeout=5
        )
        if answer.status_code != 200:
            raise AirflowApiError(answer.text, answer.status_code)
        found = answer.json()["dag_runs"]
        states |= {run["dag_run_id"]: run["state"] for run in found}
        if len(found) < 100:
            return states


def _reap(airflow: AirflowCluster) -> dict[str, Any]:
    """Make one pass of the reaper, as a person or cron does."""
    command = [sys.executable, "-m", "airflow_aiptraining.cli", "jobs", "reap"]
    ended = subprocess.run(
        [*command, "--cancel", "--grace", "3"],
        env=airflow.env,
        cwd=airflow.home,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = [line for line in ended.stderr.splitlines() if line][-20:]
    return {"code": ended.returncode, "cancelled": ended.stdout.splitlines(), "said": said}


def _wait_for_end(service: EmbeddedService) -> None:
    """Give what was cancelled the time to end."""
    with contextlib.suppress(TimeoutError):
        wait_for(
            lambda: all(JobState(job.state) is not JobState.CANCELLING for job in _jobs(service)),
            timeout=30,
            what="cancelled jobs to end",
        )


def _jobs(service: EmbeddedService) -> list[JobRecord]:
    """Return what the service's own database says, past its API."""
    [path] = service.data.rglob("jobs.sqlite")
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        rows = database.execute(
            "SELECT job_id, state, labels, create_time, start_time, end_time, error_message"
            " FROM jobs ORDER BY number"
        ).fetchall()
    return [
        JobRecord(job_id, state, TaskKey.from_labels(json.loads(labels)), *times, error[:500])
        for job_id, state, labels, *times, error in rows
    ]


def _tasks(api: AirflowApi) -> Iterator[TaskRecord]:
    """Give what Airflow says of every task instance."""
    mismatches = Counter(
        (entry["run_id"], entry["task_id"], entry["map_index"])
        for entry in _pages(api, "/eventLogs", "event_logs", dag_id=DAG, event="state mismatch")
    )
    instances = _pages(api, f"/dags/{DAG}/dagRuns/~/taskInstances", "task_instances")
    for ti in instances:
        run_id, task_id, map_index = ti["dag_run_id"], ti["task_id"], ti["map_index"]
        job = ""
        if ti["state"] == "success":
            with contextlib.suppress(AirflowApiError):
                job = (api.xcom(DAG, run_id, task_id, map_index=map_index) or {}).get("job_id", "")
        yield TaskRecord(
            TaskKey(DAG, task_id, run_id, map_index),
            ti["state"],
            ti["try_number"],
            ti["max_tries"],
            job,
            mismatches[run_id, task_id, map_index],
        )


def _pages(api: AirflowApi, path: str, name: str, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = api.get(path, limit=100, offset=len(found), **params)[name]
        found += page
        if len(page) < 100:
            return found


def _add_logs(api: AirflowApi, verdict: Verdict) -> None:
    """Add the ends of the logs of all tries to the tasks that broke a rule."""
    for found in [*verdict.violations, *verdict.raced]:
        if task := found["task"]:
            key = TaskKey(**task["key"])
            logs = {}
            for number in range(1, task["tries"] + 1):
                try:
                    text = api.log(DAG, key.run_id, key.task_id, number, key.map_index)
                except (AirflowApiError, httpx.HTTPError) as error:
                    text = f"(no log: {error})"
                logs[number] = text[-2500:]
            found["logs"] = logs


def _brief(job: JobRecord) -> dict[str, Any]:
    return {"job_id": job.job_id, "state": job.state, "task": str(job.task)}


def _summary(report: dict[str, Any]) -> str:
    kills = report["kills"]
    told = ", ".join(f"{kills[kind]} × {kind}" for kind in WEIGHTS if kind in kills)
    lines = [
        f"seed {report['seed']}: runs {report['runs']} in {report['seconds_of_runs']} s, "
        f"{report['seconds']} s in all",
        f"killed: {sum(kills.values())} ({told})",
        f"tasks: {report['tasks']}, {report['tries']} tries; "
        f"tasks by attempts: {report['tasks_by_attempts']}",
        f"jobs: {report['jobs']}",
        f"orphans before the reaper: {report['orphans_before_reaper'] or 'none'}",
        f"Airflow's word and its executor's differed {report['airflow_mismatches']} times; "
        f"tasks failed by that although their job succeeded: "
        f"{len(report['failed_by_airflows_race'])}",
    ]
    if report["outlived_their_parents"]:
        lines.append(f"ended after all: {report['outlived_their_parents']}")
    if report["processes_left"]:
        lines.append(f"processes left: {report['processes_left']}")
    for violation in report["violations"]:
        lines.append(f"VIOLATION: {violation['rule']}")
        if task := violation["task"]:
            lines.append(f"  task {task['name']}: {task['state']}, try {task['tries']}")
        for job in violation["jobs"]:
            times = "  ".join(
                "-" if job[name] is None else f"{name} {job[name] % 86400:.1f}"
                for name in ("created", "started", "ended")
            )
            lines.append(f"  job {job['job_id']}: {job['state']}  {times}  {job['error'][:120]}")
        for number, log in violation.get("logs", {}).items():
            lines.append(f"  try {number}:")
            lines += [f"    | {line}" for line in log.splitlines()[-12:]]
    lines.append("every rule held" if not report["violations"] else "RULES WERE BROKEN")
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main())
