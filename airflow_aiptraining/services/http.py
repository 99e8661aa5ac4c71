"""Google API clients for one endpoint, safe to use from many threads."""

from __future__ import annotations

import threading
from typing import Any

import google_auth_httplib2
import httplib2
from google.api_core.client_options import ClientOptions
from google.auth.credentials import Credentials
from googleapiclient.discovery import build
from googleapiclient.http import HttpRequest, set_user_agent

from airflow_aiptraining import __version__
from airflow_aiptraining.services.errors import translate

#: Seconds until a call that isn't answered counts as lost.
TIMEOUT = 60.0


class ApiClient:
    """One discovery API at one endpoint.

    httplib2's connections are not for sharing between threads: each thread has its own.

    :param api: the API's name in the discovery documents that ship with google-api-python-client.
    :param version: its version there.
    :param credentials: of the connection, impersonation included.
    :param api_endpoint: URL; empty for Google's own.
    :param timeout: seconds for one call.
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
        try:
            answer = request.execute(http=self._http(), num_retries=0)
            if not isinstance(answer, dict):
                raise ValueError(f"expected a JSON object, got {type(answer).__name__}")
        except Exception as error:
            raise translate(error, doing) from error
        return answer
