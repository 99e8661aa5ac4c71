"""``aiptraining jobs``: this Airflow's training jobs, seen from its command line.

These commands run where ``airflow`` commands run: they read connections and the states of task
instances from Airflow's own database.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from airflow_aiptraining.core.reaping import ENDED_RUN_STATES, GRACE, Absent
from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.core.task_keys import TaskKey
from airflow_aiptraining.exceptions import AIPTrainingError

if TYPE_CHECKING:
    from airflow_aiptraining.core.reaping import TaskState
    from airflow_aiptraining.hooks.training import AIPTrainingHook
    from airflow_aiptraining.operators.reaper import Finding

#: A person at a terminal doesn't wait five minutes to hear that the service is away.
LIST_PATIENCE = 10.0


class AirflowUnreadableError(AIPTrainingError):
    """Airflow's connections or its database can't be read from here."""


def add_commands(commands: Any) -> None:
    """Add ``jobs list`` and ``jobs reap`` to the parser.

    :param commands: what ``add_subparsers`` returned.
    """
    jobs = commands.add_parser(
        "jobs", help="list training jobs; cancel those that no task counts on"
    )
    verbs = jobs.add_subparsers(title="commands", dest="verb", metavar="COMMAND", required=True)

    listing = verbs.add_parser(
        "list",
        help="list training jobs",
        description="List training jobs, newest first: active ones, unless --all is given.",
    )
    _add_place(listing)
    listing.add_argument("--all", action="store_true", help="ended jobs, too")
    listing.add_argument("--limit", type=_count, default=100, metavar="N", help="default: 100")
    listing.add_argument("--json", action="store_true", help="one Job resource a line")
    listing.set_defaults(run=_list)

    reap = verbs.add_parser(
        "reap",
        help="find jobs that no task counts on any more, and cancel them",
        description="Find active jobs of this Airflow whose task instance has ended or is gone. "
        "Without --cancel they are only listed. With it they are looked at again after some time "
        "and cancelled if nothing has changed.",
    )
    _add_place(reap)
    reap.add_argument("--cancel", action="store_true", help="cancel them")
    reap.add_argument(
        "--grace",
        type=_seconds,
        default=GRACE,
        metavar="SECONDS",
        help=f"time between the two looks of --cancel; default: {GRACE:.0f}",
    )
    reap.set_defaults(run=_reap)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--conn-id",
        default="aiptraining_default",
        metavar="ID",
        help="Airflow connection; default: aiptraining_default",
    )
    parser.add_argument("--project", metavar="ID", help="default: the connection's")


def _list(arguments: argparse.Namespace) -> int:
    from airflow_aiptraining.operators.reaper import active_jobs

    service = _hook(arguments).get_service(arguments.project)
    if arguments.all:
        jobs = list(service.list_jobs(limit=arguments.limit))
    else:
        jobs = list(active_jobs(service, patience=LIST_PATIENCE))
    jobs.sort(key=lambda job: str(job.get("createTime", "")), reverse=True)
    for job in jobs[: arguments.limit]:
        if arguments.json:
            _write(json.dumps(job, sort_keys=True, ensure_ascii=False))
        else:
            task = TaskKey.from_labels(job.get("labels") or {})
            _write(
                f"{job['jobId']}  {JobState.of(job)}  {job.get('createTime', '')}  {task or '-'}"
            )
    return 0


def _reap(arguments: argparse.Namespace) -> int:
    from airflow_aiptraining.operators.reaper import Reaper

    hook = _hook(arguments)
    reaper = Reaper(hook.get_service(arguments.project), hook.deployment, _state_of)
    findings = reaper.look()
    for finding in findings:
        if not finding.verdict.is_orphan:
            _note(f"left: {finding}")
    suspects = [finding for finding in findings if finding.verdict.is_orphan]
    for finding in suspects:
        _write(f"orphan: {finding}")
    if not suspects:
        _note("No job is without a task.")
        return 0
    if not arguments.cancel:
        _note(f"{len(suspects)} jobs would be cancelled; do it with --cancel.")
        return 0
    return _cancel(reaper, suspects, arguments.grace)


def _cancel(reaper: Any, suspects: list[Finding], grace: float) -> int:
    _note(f"Looking at them again in {grace:.0f} s.")
    time.sleep(grace)
    cancelled, problems = reaper.reap([finding.job_id for finding in suspects])
    for job_id in cancelled:
        _write(f"cancelled: {job_id}")
    for problem in problems:
        _note(f"not cancelled: {problem}")
    return 1 if problems else 0


def _hook(arguments: argparse.Namespace) -> AIPTrainingHook:
    # As `airflow connections test` does: without it Airflow's SDK takes this process for a task
    # and doesn't look for connections in the database.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    # Airflow logs to what is standard output when it is imported; results only belong there.
    with contextlib.redirect_stdout(sys.stderr):
        from airflow.sdk.exceptions import AirflowException

        from airflow_aiptraining.hooks.training import AIPTrainingHook

    try:
        return AIPTrainingHook(arguments.conn_id)
    except AirflowException as error:
        raise AirflowUnreadableError(
            f"{error}. Add the connection, name another by --conn-id, or run this where the "
            "airflow command knows it (AIRFLOW_HOME)."
        ) from error


def _state_of(task: TaskKey) -> TaskState:
    """Read a task instance's state from Airflow's database.

    A task instance that isn't there counts as gone only in a database that knows its DAG: with the
    wrong AIRFLOW_HOME every job's would be gone.
    """
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select
    from sqlalchemy.exc import SQLAlchemyError

    wanted = (
        select(TaskInstance.state, DagRun.state)
        .join(TaskInstance.dag_run)
        .where(
            TaskInstance.dag_id == task.dag_id,
            TaskInstance.task_id == task.task_id,
            TaskInstance.run_id == task.run_id,
            TaskInstance.map_index == task.map_index,
        )
    )
    try:
        with create_session() as session:
            found = session.execute(wanted).all()
            if found:
                state, of_run = found[0]
                if state is None and of_run in ENDED_RUN_STATES:
                    return Absent.RUN_ENDED
                return None if state is None else str(state)
            known = session.get(DagModel, task.dag_id) is not None
    except SQLAlchemyError as error:
        raise AirflowUnreadableError(
            f"Airflow's database can't be read ({str(error).splitlines()[0]}). Run this where the "
            "airflow command works (AIRFLOW_HOME)."
        ) from error
    return Absent.GONE if known else Absent.DAG_UNKNOWN


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _note(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 is expected, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"whole seconds are expected, not {text!r}")
    return float(text)
