"""``aiptraining jobs``: training jobs, from a command line.

Each command has a module of its own.  All but ``reap`` need no Airflow: they take a service's URL.
"""

from __future__ import annotations

from typing import Any

from airflow_aiptraining import cli_jobs_logs, cli_jobs_reap, cli_jobs_show, cli_jobs_submit


def add_commands(commands: Any) -> None:
    """Add ``jobs`` and its commands to the parser.

    :param commands: what ``add_subparsers`` returned.
    """
    jobs = commands.add_parser(
        "jobs", help="submit, list, describe, cancel training jobs; read their logs"
    )
    verbs = jobs.add_subparsers(title="commands", dest="verb", metavar="COMMAND", required=True)
    cli_jobs_submit.add_command(verbs)
    cli_jobs_show.add_commands(verbs)
    cli_jobs_logs.add_command(verbs)
    cli_jobs_reap.add_command(verbs)
