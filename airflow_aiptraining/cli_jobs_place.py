"""Where the jobs of ``aiptraining jobs`` are: at a URL, or where an Airflow connection says."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_aiptraining.cli_output import note
from airflow_aiptraining.exceptions import AIPTrainingError

if TYPE_CHECKING:
    from airflow_aiptraining.hooks.endpoint import EndpointHook
    from airflow_aiptraining.hooks.training import AIPTrainingHook
    from airflow_aiptraining.services.ml_v1 import MLv1Service

#: Environment variable with the URL where none is given.
URL_VARIABLE = "AIPTRAINING_URL"
DEFAULT_CONNECTION = "aiptraining_default"
#: A person at a terminal doesn't wait five minutes to hear that the service is away.
PATIENCE = 10.0

_JOB_ID = re.compile(r"[A-Za-z]\w{0,127}", re.ASCII)


class AirflowUnreadableError(AIPTrainingError):
    """Airflow's connections or its database can't be read from here."""


@dataclass(frozen=True)
class Place:
    """The service that a command talks to.

    :param hook: reaches it.
    :param conn_id: the Airflow connection; empty where a URL was given.
    :param project: as given; ``None`` for the place's own.
    :param flags: what names the same place in another command; begins with a space, if any.
    """

    hook: EndpointHook | AIPTrainingHook
    conn_id: str
    project: str | None
    flags: str

    def service(self) -> MLv1Service:
        """Return its verbs."""
        return self.hook.get_service(self.project)


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a command that is about this Airflow's jobs only."""
    parser.add_argument(
        "--conn-id",
        default=DEFAULT_CONNECTION,
        metavar="ID",
        help=f"Airflow connection; default: {DEFAULT_CONNECTION}",
    )
    parser.add_argument("--project", metavar="ID", help="default: the connection's")


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where the jobs are."""
    place = parser.add_argument_group(
        "where the jobs are",
        f"A URL needs no Airflow. Without --url, --conn-id and ${URL_VARIABLE} it is the "
        f"connection {DEFAULT_CONNECTION}.",
    )
    either = place.add_mutually_exclusive_group()
    either.add_argument(
        "--url",
        metavar="URL",
        help=f"of the embedded service, as 'aiptraining serve' prints it; default: ${URL_VARIABLE}",
    )
    either.add_argument("--conn-id", metavar="ID", help="Airflow connection")
    place.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="holds the token that the URL's service wants",
    )
    place.add_argument(
        "--project", metavar="ID", help="default: 'local' with a URL, else the connection's"
    )


def add_job_id(parser: argparse.ArgumentParser) -> None:
    """Add the name of one job."""
    parser.add_argument("job_id", type=_job_id, metavar="NAME", help="the job's id")


def place_of(arguments: argparse.Namespace) -> Place:
    """Return the place that the flags, or else the environment, name.

    :raises ConnectionSettingsError: it can't be used as it is given.
    :raises AirflowUnreadableError: Airflow can't tell the connection.
    """
    variable = os.environ.get(URL_VARIABLE) or None
    url = arguments.url or (None if arguments.conn_id else variable)
    given = {
        "--url": arguments.url,
        "--conn-id": arguments.conn_id,
        "--token-file": arguments.token_file,
        "--project": arguments.project,
    }
    flags = "".join(f" {flag} {shlex.quote(str(value))}" for flag, value in given.items() if value)
    if url:
        from airflow_aiptraining.hooks.endpoint import EndpointHook

        hook = EndpointHook(url, arguments.token_file)
        if arguments.token_file and not hook.is_private:
            note(f"note: {hook.url} is plain http on another machine: the token travels readable.")
        return Place(hook, "", arguments.project, flags)
    if arguments.token_file:
        raise AIPTrainingError(
            f"--token-file is for --url or ${URL_VARIABLE}; a connection has its own credentials."
        )
    conn_id = arguments.conn_id or DEFAULT_CONNECTION
    return Place(connection_hook(conn_id), conn_id, arguments.project, flags)


def connection_hook(conn_id: str) -> AIPTrainingHook:
    """Return the hook of an Airflow connection.

    :raises AirflowUnreadableError: this Airflow doesn't know it.
    """
    # As `airflow connections test` does: without it Airflow's SDK takes this process for a task
    # and doesn't look for connections in the database.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    # Airflow logs to what is standard output when it is imported; results only belong there.
    with contextlib.redirect_stdout(sys.stderr):
        from airflow.sdk.exceptions import AirflowException

        from airflow_aiptraining.hooks.training import AIPTrainingHook

    try:
        return AIPTrainingHook(conn_id)
    except AirflowException as error:
        raise AirflowUnreadableError(
            f"{error}. Add the connection, name another by --conn-id, or run this where the "
            "airflow command knows it (AIRFLOW_HOME). The embedded service needs no connection: "
            f"give its --url, or set {URL_VARIABLE}."
        ) from error


def positive(text: str) -> int:
    """Read a whole number from 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 is expected, not {text!r}")
    return int(text)


def _job_id(text: str) -> str:
    if not _JOB_ID.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no job's id: it has letters, digits and underscores, a letter first"
        )
    return text
