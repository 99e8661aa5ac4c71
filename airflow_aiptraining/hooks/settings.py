"""What a connection says besides credentials: which service, where, and whose Airflow this is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from airflow_aiptraining.exceptions import AIPTrainingError

ML_V1 = "ml_v1"
LOCAL = "local"
VERTEX_AI = "vertex_ai"
SERVICES = (LOCAL, ML_V1, VERTEX_AI)

#: How the types of usable connections begin: ours and Google's own.
_CONNECTION_TYPES = ("aiptraining", "google", "gcp")
#: Source: form of Google's project ids, domain-scoped ones included.
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")

#: The project of the embedded service where the connection names none.
LOCAL_PROJECT = "local"


class ConnectionSettingsError(AIPTrainingError):
    """The connection's extras can't be used as they are."""


@dataclass(frozen=True)
class ConnectionSettings:
    """The ``aiptraining`` extras of a connection.

    :param service: ``local``, ``ml_v1`` or ``vertex_ai``: what runs the jobs.
    :param deployment: names this Airflow among others that share the project; part of every job's
        owner, so that equal run ids of two Airflows don't meet.
    :param api_endpoint: URL of the service; empty for Google's own.
    :param storage_endpoint: URL of Cloud Storage; empty for Google's own.
    :param logging_endpoint: URL of Cloud Logging; empty for Google's own.
    :param region: of jobs that name none.
    :param staging_bucket: of trainers' packages, ``gs://bucket`` or its bare name.
    :param runtime_version: of jobs that name none and have no image.
    :param python_version: the same.
    """

    service: str = LOCAL
    deployment: str = ""
    api_endpoint: str = ""
    storage_endpoint: str = ""
    logging_endpoint: str = ""
    region: str = ""
    staging_bucket: str = ""
    runtime_version: str = ""
    python_version: str = ""

    @classmethod
    def of(cls, extras: Mapping[str, Any], *, conn_id: str, conn_type: str) -> ConnectionSettings:
        """Read a connection's extras.

        :param conn_id: for messages.
        :param conn_type: ``aiptraining``, whose service is the embedded one unless it says
            otherwise; any other (``google_cloud_platform``) means Google's own ML v1.
        :raises ConnectionSettingsError: naming the extra, what it holds, and what it may hold.
        """
        values: dict[str, str] = {}
        for field in fields(cls):
            value = extras.get(field.name)
            if value is None:
                continue
            if not isinstance(value, str):
                raise ConnectionSettingsError(
                    f"Connection {conn_id!r}: extra {field.name!r} is {value!r}; write it as text, "
                    "in quotes (2.10 without them is read as 2.1)."
                )
            if value.strip():
                values[field.name] = value.strip()
        if not conn_type.startswith(_CONNECTION_TYPES):
            raise ConnectionSettingsError(
                f"Connection {conn_id!r} is of type {conn_type!r}; it must be 'aiptraining' or "
                "'google_cloud_platform'."
            )
        service = values.setdefault("service", LOCAL if conn_type == "aiptraining" else ML_V1)
        if service not in SERVICES:
            raise ConnectionSettingsError(
                f"Connection {conn_id!r}: service is {service!r}; it may be "
                f"{', '.join(map(repr, SERVICES))}."
            )
        for name in ("api_endpoint", "storage_endpoint", "logging_endpoint"):
            if name in values:
                values[name] = checked_url(values[name], f"Connection {conn_id!r}: {name}")
        if service == LOCAL:
            if "api_endpoint" not in values:
                raise ConnectionSettingsError(
                    f"Connection {conn_id!r} is for the embedded training service, but its "
                    "api_endpoint is empty. Start the service with 'aiptraining serve --data DIR' "
                    "and put the URL that it prints there."
                )
            values.setdefault("storage_endpoint", values["api_endpoint"])
            values.setdefault("logging_endpoint", values["api_endpoint"])
        return cls(**values)

    def check_no_cleartext_tokens(self, conn_id: str) -> None:
        """Refuse an endpoint to which an access token would travel unencrypted over a network."""
        for name in ("api_endpoint", "storage_endpoint", "logging_endpoint"):
            url = urlsplit(getattr(self, name))
            if url.scheme == "http" and not is_loopback(url.hostname or ""):
                raise ConnectionSettingsError(
                    f"Connection {conn_id!r}: {name} is plain http on another machine, and the "
                    "connection has credentials: their token would travel in the clear. Use https, "
                    'or set "is_anonymous": true.'
                )


def check_project(project: str, conn_id: str) -> str:
    """Return ``project`` if it can be a project's id.

    :raises ConnectionSettingsError: it can't; it would become another URL.
    """
    if not _PROJECT.fullmatch(project):
        raise ConnectionSettingsError(
            f"Project {project!r} (of the task, or of connection {conn_id!r}) is no project id: it "
            "has letters, digits and hyphens, e.g. 'my-project-1'."
        )
    return project


def checked_url(value: str, what: str) -> str:
    """Return an endpoint's URL without a slash at its end.

    :param what: names it in messages.
    :raises ConnectionSettingsError: it is no address of a service.
    """
    url = urlsplit(value)
    try:
        url.port  # noqa: B018 — reading it checks it
    except ValueError:
        raise ConnectionSettingsError(
            f"{what} is {value!r}; a port is a number up to 65535."
        ) from None
    if url.username or url.password:
        raise ConnectionSettingsError(
            f"{what} holds a user name or password; URLs end up in logs. Take it out."
        )
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise ConnectionSettingsError(
            f"{what} is {value!r}; it must be an address such as "
            "'http://127.0.0.1:8085' or 'https://ml.example.com'."
        )
    return value.rstrip("/")


def is_loopback(host: str) -> bool:
    """Return whether a URL's host is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
