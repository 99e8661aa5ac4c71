"""``aiptraining jobs list``, ``describe`` and ``cancel``: look at jobs, and end one."""

from __future__ import annotations

import argparse
import json
from typing import Any

from airflow_aiptraining.cli_jobs_place import PATIENCE, add_job_id, add_place, place_of, positive
from airflow_aiptraining.cli_output import note, write, write_json, write_table, write_yaml
from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.core.task_keys import TaskKey


def add_commands(verbs: Any) -> None:
    """Add the commands to the parser.

    :param verbs: what ``add_subparsers`` returned.
    """
    listing = verbs.add_parser(
        "list",
        help="list training jobs",
        description="List training jobs, newest first: active ones, unless --all or --filter is "
        "given.",
    )
    add_place(listing)
    listing.add_argument("--all", action="store_true", help="ended jobs, too")
    listing.add_argument(
        "--filter", default="", metavar="TEXT", help="e.g. 'jobId:census* AND state:FAILED'"
    )
    listing.add_argument("--limit", type=positive, default=100, metavar="N", help="default: 100")
    form = listing.add_mutually_exclusive_group()
    form.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    form.add_argument("--json", action="store_true", help="one Job resource a line")
    listing.set_defaults(run=_list)

    describe = verbs.add_parser(
        "describe", help="show a job", description="Print a job as the service tells it."
    )
    add_job_id(describe)
    add_place(describe)
    describe.add_argument(
        "--format", choices=("yaml", "json"), default="yaml", help="default: yaml"
    )
    describe.set_defaults(run=_describe)

    cancel = verbs.add_parser(
        "cancel",
        help="cancel a job",
        description="Cancel a job. One that has ended is left as it is.",
    )
    add_job_id(cancel)
    add_place(cancel)
    cancel.set_defaults(run=_cancel)


def write_job(job: dict[str, Any], form: str) -> None:
    """Print a job.

    :param form: ``yaml`` or ``json``.
    """
    if form == "json":
        write_json(job)
    else:
        write_yaml(job)


def _list(arguments: argparse.Namespace) -> int:
    from airflow_aiptraining.operators.reaper import active_jobs
    from airflow_aiptraining.services.retries import patiently

    service = place_of(arguments).service()
    limit = arguments.limit
    if arguments.all or arguments.filter:
        jobs = patiently(
            lambda: list(service.list_jobs(arguments.filter, limit)), patience=PATIENCE
        )
    else:
        jobs = list(active_jobs(service, patience=PATIENCE))
    jobs.sort(key=lambda job: str(job.get("createTime", "")), reverse=True)
    jobs = jobs[:limit]
    if arguments.json:
        for job in jobs:
            write(json.dumps(job, sort_keys=True, ensure_ascii=False))
    elif arguments.format == "json":
        write_json(jobs)
    elif jobs:
        rows = [_row(job) for job in jobs]
        write_table(("JOB_ID", "STATE", "CREATED", "ENDED", "TASK OF AIRFLOW"), rows)
    if not jobs:
        is_part = not (arguments.all or arguments.filter)
        note("No active jobs; ended ones are listed with --all." if is_part else "No jobs.")
    return 0


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    task = TaskKey.from_labels(job.get("labels") or {})
    times = (str(job.get(name) or "-") for name in ("createTime", "endTime"))
    return (str(job["jobId"]), str(JobState.of(job)), *times, str(task or "-"))


def _describe(arguments: argparse.Namespace) -> int:
    from airflow_aiptraining.services.retries import patiently

    service = place_of(arguments).service()
    write_job(
        patiently(lambda: service.get_job(arguments.job_id), patience=PATIENCE), arguments.format
    )
    return 0


def _cancel(arguments: argparse.Namespace) -> int:
    from airflow_aiptraining.exceptions import ServiceError
    from airflow_aiptraining.services.retries import patiently

    place = place_of(arguments)
    service, job_id = place.service(), arguments.job_id
    try:
        patiently(lambda: service.cancel_job(job_id), patience=PATIENCE)
    except ServiceError as error:
        # 400: it has ended.  The API documents that as a success, and whoever cancels has got what
        # they wanted.
        if error.status != 400:
            raise
        state = JobState.of(patiently(lambda: service.get_job(job_id), patience=PATIENCE))
        if not state.is_terminal:
            raise
        note(f"Job {job_id!r} has ended already, {state}: there is nothing to cancel.")
        return 0
    note(
        f"Job {job_id!r} is being cancelled. See how it ends: "
        f"aiptraining jobs describe {job_id}{place.flags}"
    )
    return 0
