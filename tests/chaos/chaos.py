"""Kills processes of a real Airflow at random while it trains, and counts the jobs: ``make chaos``.

A cluster and the embedded service are started, a backfill of short jobs runs on them, and processes
are killed, told to end or frozen until all runs have ended.  Then the service's own records are
read: for each piece of work there must be exactly one job that succeeded, never two at a time, none
left, and each task's state must be true to its job's.  What people did to a task is allowed for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "dags_examples" / "demo"))

import httpx  # noqa: E402 - after the path
from airflow_api import END_STATES, AirflowApiError  # noqa: E402
from cluster import AirflowCluster  # noqa: E402
from kills import Chaos  # noqa: E402
from people import People  # noqa: E402
from processes import signals_unwind, wait_for  # noqa: E402
from records import (  # noqa: E402
    add_logs,
    count_jobs,
    jobs_of,
    run_states,
    tasks_of,
    tasks_of_running_jobs,
)
from report import summary  # noqa: E402
from service import EmbeddedService  # noqa: E402
from verdict import JobRecord, judge  # noqa: E402

from airflow_aiptraining.core.states import JobState  # noqa: E402

DAG = "chaos"
BUCKET = "chaos"
#: Tasks that are queued or running in a worker, see dags/chaos.py.
POOL = "chaos"
POOL_SLOTS = 6
FIRST_DAY = date(2000, 2, 1)
TASKS_A_RUN = 4
#: Which instances fail how often by themselves, see dags/chaos.py.
FAILURES_MEANT = {("mapped", 1): 1}
#: Seconds between two lines about the progress.
PROGRESS_EVERY = 30
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
    home = Path(tempfile.mkdtemp(prefix="aiptraining-chaos-"))
    print(f"{runs} runs of {TASKS_A_RUN} tasks, seed {options.seed}, kills for {options.limit} s")
    print(f"records and logs: {home}")
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
                airflow,
                service,
                options.seed,
                options.pauses,
                downtimes=(0.5, 4.0),
                most=options.kills,
                count_running=lambda: count_jobs(service, JobState.RUNNING),
                count_done=lambda: count_jobs(service, JobState.SUCCEEDED),
            )
            try:
                airflow.start()
                report = _run(airflow, service, chaos, runs, options)
            finally:
                left += airflow.stop()
                report["outlived_their_parents"] = chaos.end_orphans()
        finally:
            left += service.stop()
    report = {
        "seed": options.seed,
        "stretch": options.stretch,
        "seconds": round(time.monotonic() - started),
        "lowered": LOWERED,
        **report,
        "processes_left": left,
    }
    broken = bool(report["violations"] or left)
    if options.report:
        options.report.write_text(json.dumps(report, indent=2))
    print(json.dumps(report) if options.json else summary(report))
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
        default=(4.0, 12.0),
        metavar=("FROM", "TO"),
        help="seconds between two kills; default: 4 12",
    )
    parser.add_argument(
        "--stretch",
        type=int,
        help="factor of the trainers' 2 to 6 s; default: 2, from 100 tasks on 6",
    )
    parser.add_argument(
        "--people",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the tasks that people clear or mark failed, each once; default: 0",
    )
    parser.add_argument(
        "--limit",
        type=int,
        help="seconds after which nothing is killed any more, and as many again in which the runs "
        "must end then; default: 600 and 15 for a task",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON, in one line")
    parser.add_argument("--report", type=Path, help="write the report to this file as well")
    parser.add_argument("--keep", action="store_true", help="keep records and logs")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(10_000)
    options.stretch = options.stretch or (2 if options.tasks < 100 else 6)
    options.limit = options.limit or 600 + 15 * options.tasks
    return options


def _run(
    airflow: AirflowCluster,
    service: EmbeddedService,
    chaos: Chaos,
    runs: int,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Run the backfill under kills and return the report."""
    airflow.api.wait_for_dags([DAG])
    airflow.api.set_pool(POOL, POOL_SLOTS)
    airflow.api.unpause(DAG)
    last = FIRST_DAY + timedelta(days=runs - 1)
    conf = {"stretch": options.stretch}
    began = time.monotonic()
    airflow.api.backfill(DAG, _utc(FIRST_DAY), _utc(last), reprocess="none", conf=conf)
    touched = round(options.people * options.tasks)
    people = People(
        airflow.api,
        DAG,
        options.seed,
        touched,
        pauses=(5, 12),
        training=lambda: tasks_of_running_jobs(service),
    )
    chaos.begin()
    states = _wait_for_runs(airflow, service, chaos, people, runs, options.limit)
    seconds = round(time.monotonic() - began)
    chaos.settle()
    with contextlib.suppress(TimeoutError):
        airflow.wait_until_healthy(timeout=60)
    orphans = [job for job in jobs_of(service) if not JobState(job.state).is_terminal]
    reaped = _reap(airflow)
    _wait_for_end(service)
    tasks = list(tasks_of(airflow.api, DAG))
    jobs = jobs_of(service)
    verdict = judge(
        jobs,
        tasks,
        expected=runs * TASKS_A_RUN,
        failures_meant=FAILURES_MEANT,
        events=people.events,
    )
    if reaped["code"]:
        verdict.violations.append({"rule": "the reaper failed", "task": None, "jobs": []})
    add_logs(airflow.api, verdict)
    return {
        "runs": dict(Counter(states.values())),
        "seconds_of_runs": seconds,
        "kills": chaos.by_kind(),
        "kill_list": chaos.kills,
        "restarts_for_lost_tasks": chaos.rescues,
        "people": people.by_kind(),
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


def _wait_for_runs(
    airflow: AirflowCluster,
    service: EmbeddedService,
    chaos: Chaos,
    people: People,
    runs: int,
    limit: float,
) -> dict[str, str]:
    """Go on killing until all runs have ended or the time is up; return their states."""
    states: dict[str, str] = {}
    began = asked = told = time.monotonic()
    while (now := time.monotonic()) < began + 2 * limit:
        if now > began + limit and not chaos.is_over:
            print("The time is up: nothing is killed any more.")
            chaos.settle()
        chaos.go_on()
        if not chaos.is_away("api-server"):
            people.go_on()
            if now - asked > 1.5:
                asked = now
                with contextlib.suppress(httpx.HTTPError, AirflowApiError):
                    states = run_states(airflow.api, DAG)
                    if len(states) == runs and set(states.values()) <= END_STATES:
                        return states
        if now - told > PROGRESS_EVERY:
            told = now
            ended = sum(state in END_STATES for state in states.values())
            print(
                f"  {now - began:6.1f} s  {ended} of {runs} runs have ended, "
                f"{count_jobs(service, JobState.SUCCEEDED)} jobs SUCCEEDED, "
                f"{count_jobs(service, JobState.RUNNING)} run, {len(chaos.kills)} kills",
                flush=True,
            )
        time.sleep(0.1)
    print("The time is up, and runs have not ended.")
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
            lambda: all(JobState(job.state) is not JobState.CANCELLING for job in jobs_of(service)),
            timeout=30,
            what="cancelled jobs to end",
        )


def _utc(day: date) -> str:
    return f"{day}T00:00:00Z"


def _brief(job: JobRecord) -> dict[str, Any]:
    return {"job_id": job.job_id, "state": job.state, "task": str(job.task)}


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main())
