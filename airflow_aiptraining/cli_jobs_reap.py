"""``aiptraining jobs reap``: end the jobs that no task of this Airflow counts on any more.

It runs where ``airflow`` commands run: it reads connections and the states of task instances from
Airflow's own database.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from airflow_aiptraining.cli_jobs_place import (
    AirflowUnreadableError,
    add_connection,
    connection_hook,
)
from airflow_aiptraining.cli_output import note, write
from airflow_aiptraining.core.reaping import ENDED_RUN_STATES, GRACE, Absent

if TYPE_CHECKING:
    from airflow_aiptraining.core.reaping import TaskState
    from airflow_aiptraining.core.task_keys import TaskKey
    from airflow_aiptraining.operators.reaper import Finding


def add_command(verbs: Any) -> None:
    """Add ``jobs reap`` to the parser.

    :param verbs: what ``add_subparsers`` returned.
    """
    reap = verbs.add_parser(
        "reap",
        help="find jobs that no task counts on any more, and cancel them",
        description="Find active jobs of this Airflow whose task instance has ended or is gone. "
        "Without --cancel they are only listed. With it they are looked at again after some time "
        "and cancelled if nothing has changed.",
    )
    add_connection(reap)
    reap.add_argument("--cancel", action="store_true", help="cancel them")
    reap.add_argument(
        "--grace",
        type=_seconds,
        default=GRACE,
        metavar="SECONDS",
        help=f"time between the two looks of --cancel; default: {GRACE:.0f}",
    )
    reap.set_defaults(run=_reap)


def _reap(arguments: argparse.Namespace) -> int:
    from airflow_aiptraining.operators.reaper import Reaper

    hook = connection_hook(arguments.conn_id)
    reaper = Reaper(hook.get_service(arguments.project), hook.deployment, _state_of)
    findings = reaper.look()
    for finding in findings:
        if not finding.verdict.is_orphan:
            note(f"left: {finding}")
    suspects = [finding for finding in findings if finding.verdict.is_orphan]
    for finding in suspects:
        write(f"orphan: {finding}")
    if not suspects:
        note("No job is without a task.")
        return 0
    if not arguments.cancel:
        note(f"{len(suspects)} jobs would be cancelled; do it with --cancel.")
        return 0
    return _cancel(reaper, suspects, arguments.grace)


def _cancel(reaper: Any, suspects: list[Finding], grace: float) -> int:
    note(f"Looking at them again in {grace:.0f} s.")
    time.sleep(grace)
    cancelled, problems = reaper.reap([finding.job_id for finding in suspects])
    for job_id in cancelled:
        write(f"cancelled: {job_id}")
    for problem in problems:
        note(f"not cancelled: {problem}")
    return 1 if problems else 0


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


def _seconds(text: str) -> float:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"whole seconds are expected, not {text!r}")
    return float(text)
