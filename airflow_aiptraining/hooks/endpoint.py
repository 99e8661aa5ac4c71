"""A training service at a URL, reached without an Airflow connection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from google.auth.credentials import AnonymousCredentials, Credentials

from airflow_aiptraining.exceptions import AIPTrainingError, PermissionDeniedError
from airflow_aiptraining.hooks.settings import (
    LOCAL,
    LOCAL_PROJECT,
    ConnectionSettings,
    ConnectionSettingsError,
    check_project,
    checked_url,
    is_loopback,
)
from airflow_aiptraining.services.ml_v1 import MLv1Service

if TYPE_CHECKING:
    from google.cloud.storage import Client


class TokenFileError(AIPTrainingError):
    """The file with the service's token can't be used."""


class EndpointHook:
    """Reaches the embedded service, or what serves ML v1, storage and logs as it does.

    :param url: where; one address for all three.
    :param token_file: holds the token that the service wants; without it calls are anonymous.
    :raises ConnectionSettingsError: the URL is none.
    :raises TokenFileError: the file can't be read or is empty.
    """

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        self.url = checked_url(url, "--url")
        #: As a connection to that service has them.
        self.settings = ConnectionSettings(
            service=LOCAL,
            api_endpoint=self.url,
            storage_endpoint=self.url,
            logging_endpoint=self.url,
        )
        self._credentials: Credentials = _Token(token_file) if token_file else _NoToken()  # type: ignore[no-untyped-call]

    @property
    def is_private(self) -> bool:
        """Whether nobody on a network can read what is sent."""
        url = urlsplit(self.url)
        return url.scheme == "https" or is_loopback(url.hostname or "")

    def get_service(self, project_id: str | None = None) -> MLv1Service:
        """Return the training service.

        :raises ConnectionSettingsError: the project's name can't be one.
        """
        return MLv1Service(
            _project(project_id),
            self._credentials,
            api_endpoint=self.url,
            logging_endpoint=self.url,
        )

    def get_storage_client(self, project_id: str | None = None) -> Client:
        """Return Google's own Cloud Storage client for the service's storage."""
        from google.api_core.client_options import ClientOptions
        from google.cloud.storage import Client

        return Client(
            project=_project(project_id),
            credentials=self._credentials,
            client_options=ClientOptions(api_endpoint=self.url),
        )


# Both are asked for another token when the service has answered 401.
class _NoToken(AnonymousCredentials):
    def refresh(self, request: object) -> NoReturn:
        raise PermissionDeniedError(
            "The service wants a token. Name the file that holds it: --token-file FILE.", status=401
        )


class _Token(Credentials):
    """A bearer token that never expires and can't be had anew."""

    def __init__(self, path: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._path = path
        try:
            self.token = path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TokenFileError(f"The token file {path} can't be read: {reason}.") from error
        if not self.token or not self.token.isascii() or not self.token.isprintable():
            raise TokenFileError(f"The token file {path} must hold one line, the service's token.")

    def refresh(self, request: object) -> NoReturn:
        raise PermissionDeniedError(
            f"The service refuses the token in {self._path}. It was started with another one.",
            status=401,
        )


def _project(project_id: str | None) -> str:
    try:
        return check_project(project_id or LOCAL_PROJECT, "")
    except ConnectionSettingsError:
        raise ConnectionSettingsError(
            f"--project {project_id!r} is no project id: it has letters, digits and hyphens."
        ) from None
