"""Google API clients for one endpoint, safe to use from many threads."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import google_auth_httplib2
import httplib2
from google.api_core.client_options import ClientOptions
from google.auth.credentials import Credentials
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError
from googleapiclient.http import HttpRequest, set_user_agent

from airflow_aiptraining import __version__
from airflow_aiptraining.services.errors import translate

#: Seconds of silence until a call that isn't answered counts as lost.
TIMEOUT = 60.0
#: A call whose answer drips in counts as lost after so many times its ``timeout``.
DRIP_FACTOR = 2


class ApiClient:
    """One discovery API at one endpoint.

    httplib2's connections are not for sharing between threads: each thread has its own.

    :param api: the API's name in the discovery documents that ship with google-api-python-client.
    :param version: its version there.
    :param credentials: of the connection, impersonation included.
    :param api_endpoint: URL; empty for Google's own.
    :param timeout: seconds of silence until a call counts as lost.
    """

    def __init__(
        self,
        api: str,
        version: str,
        credentials: Credentials,
        *,
        api_endpoint: str = "",
        timeout: float = TIMEOUT,
    ) -> None:
        self._credentials = credentials
        self._timeout = timeout
        self._per_thread = threading.local()
        options = ClientOptions(api_endpoint=api_endpoint) if api_endpoint else None
        #: The API's resources, e.g. ``client.api.projects().jobs()``.
        self.api: Any = build(
            api,
            version,
            http=self._http(),
            client_options=options,
            cache_discovery=False,
            static_discovery=True,
        )

    def _http(self) -> google_auth_httplib2.AuthorizedHttp:
        http = getattr(self._per_thread, "http", None)
        if http is None:
            plain = httplib2.Http(timeout=self._timeout)
            # httplib2 follows redirects with the token; the APIs never redirect.
            plain.follow_redirects = False
            http = google_auth_httplib2.AuthorizedHttp(self._credentials, http=plain)
            set_user_agent(http, f"airflow-aiptraining/{__version__}")
            self._per_thread.http = http
        return http

    def execute(self, request: HttpRequest, doing: str) -> dict[str, Any]:
        """Send one request, once, and return its JSON object.

        :param doing: what is tried, for the error's text.
        :raises ServiceError: see :mod:`airflow_aiptraining.services.errors`.
        """
        http = self._http()
        try:
            with _bounded(http, self._timeout * DRIP_FACTOR):
                answer = request.execute(http=http, num_retries=0)
            if not isinstance(answer, dict):
                raise ValueError(f"expected a JSON object, got {type(answer).__name__}")
            if isinstance(answer.get("error"), dict):
                raise _told_as_success(answer["error"])
        except HttpError as error:
            raise translate(error, doing) from error
        except Exception as error:
            # What is left on the connection must not be read as the next call's answer.
            self._per_thread.http = None
            http.close()
            raise translate(error, doing) from error
        return answer


def _told_as_success(error: dict[str, Any]) -> Exception:
    """Return the error that a body holds whose HTTP status says success."""
    code = error.get("code")
    if isinstance(code, int) and code >= 400:
        content = json.dumps({"error": error}).encode()
        told: Exception = HttpError(httplib2.Response({"status": str(code)}), content)
        return told
    return ValueError(f"status 200 with an error inside: {json.dumps(error)}")


@contextlib.contextmanager
def _bounded(http: google_auth_httplib2.AuthorizedHttp, seconds: float) -> Iterator[None]:
    """Cut the connections if the call in here isn't done after so many seconds.

    A socket's timeout starts again with each byte, so an answer that drips in would never end.
    """
    done = threading.Event()

    def cut() -> None:
        pause = seconds
        while not done.wait(pause):
            for connection in list(http.http.connections.values()):
                if connection.sock is not None:
                    with contextlib.suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)
            # httplib2 may have connected again meanwhile.
            pause = 0.5

    threading.Thread(target=cut, name="aiptraining-call-limit", daemon=True).start()
    try:
        yield
    finally:
        done.set()
