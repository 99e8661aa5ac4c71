"""What a run of the chaos suite tells at its end, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def summary(report: dict[str, Any]) -> str:
    """Return the report as lines of text."""
    kills = report["kills"]
    during = sum(1 for kill in report["kill_list"] if kill["running"])
    lines = [
        f"seed {report['seed']}: runs {report['runs']} in {report['seconds_of_runs']} s, "
        f"{report['seconds']} s in all",
        f"kills: {sum(kills.values())}, {during} of them while jobs ran ("
        + ", ".join(f"{count} × {kind}" for kind, count in sorted(kills.items()))
        + ")",
        f"tasks: {report['tasks']}, {report['tries']} tries; "
        f"tasks by attempts: {report['tasks_by_attempts']}",
        f"jobs: {report['jobs']}",
        f"orphans before the reaper: {report['orphans_before_reaper'] or 'none'}",
        f"Airflow's word and its executor's differed {report['airflow_mismatches']} times; "
        f"tasks failed by that although their job succeeded: "
        f"{len(report['failed_by_airflows_race'])}",
    ]
    if report["restarts_for_lost_tasks"]:
        lines.append(
            f"schedulers started anew because LocalExecutor had lost a queued task: "
            f"{report['restarts_for_lost_tasks']}"
        )
    if report["people"]:
        lines.append(f"people: {report['people']}")
    if report["outlived_their_parents"]:
        lines.append(f"ended after all: {report['outlived_their_parents']}")
    if report["processes_left"]:
        lines.append(f"processes left: {report['processes_left']}")
    for violation in report["violations"]:
        lines += _violation(violation)
    if report["violations"] or report["processes_left"]:
        lines.append("RULES WERE BROKEN")
    else:
        lines.append("every rule held")
    return "\n".join(lines)


def _violation(violation: dict[str, Any]) -> Iterator[str]:
    yield f"VIOLATION: {violation['rule']}"
    if task := violation["task"]:
        yield f"  task {task['name']}: {task['state']}, try {task['tries']}"
    for event in violation.get("events", ()):
        told = "" if event["answered"] else ", Airflow's answer was lost"
        yield f"  a person {event['what']} it at {event['at'] % 86400:.1f}{told}"
    for job in violation["jobs"]:
        times = "  ".join(
            "-" if job[name] is None else f"{name} {job[name] % 86400:.1f}"
            for name in ("created", "started", "ended")
        )
        yield f"  job {job['job_id']}: {job['state']}  {times}  {job['error'][:120]}"
    for number, log in violation.get("logs", {}).items():
        yield f"  try {number}:"
        for line in log.splitlines()[-12:]:
            yield f"    | {line}"
