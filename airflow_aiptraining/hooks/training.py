"""From an Airflow connection to a training service and to object storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.google.common.hooks.base_google import GoogleBaseHook
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError

from airflow_aiptraining.exceptions import AIPTrainingError, ServiceError
from airflow_aiptraining.hooks.settings import (
    LOCAL,
    LOCAL_PROJECT,
    VERTEX_AI,
    ConnectionSettings,
    ConnectionSettingsError,
    check_project,
)
from airflow_aiptraining.services.errors import translate
from airflow_aiptraining.services.ml_v1 import MLv1Service

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.cloud.storage import Client

#: Extras that mean "these credentials": the embedded service is used without any.
_CREDENTIAL_EXTRAS = (
    "key_path",
    "keyfile_dict",
    "key_secret_name",
    "credential_config_file",
    "client_secret",
)


class AIPTrainingHook(GoogleBaseHook):
    """Reaches the training service that a connection names.

    :param gcp_conn_id: an ``aiptraining`` connection, or a plain ``google_cloud_platform`` one,
        which means Google's own endpoints.
    :param impersonation_chain: service account to impersonate, or a chain of them.

    Without a connection's own credentials the embedded service is called anonymously.
    """

    conn_name_attr = "gcp_conn_id"
    default_conn_name = "aiptraining_default"
    conn_type = "aiptraining"
    hook_name = "AI Platform Training"

    def __init__(
        self,
        gcp_conn_id: str = "aiptraining_default",
        impersonation_chain: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(gcp_conn_id=gcp_conn_id, impersonation_chain=impersonation_chain, **kwargs)

    @cached_property
    def settings(self) -> ConnectionSettings:
        """What the connection says besides credentials.

        :raises ConnectionSettingsError: an extra can't be used as it is.
        """
        connection = self.get_connection(self.gcp_conn_id)
        settings = ConnectionSettings.of(
            connection.extra_dejson,
            conn_id=self.gcp_conn_id,
            conn_type=connection.conn_type or "",
        )
        if not self._is_anonymous(settings):
            settings.check_no_cleartext_tokens(self.gcp_conn_id)
        return settings

    @property
    def deployment(self) -> str:
        """The name of this Airflow among others that use the project: it tells whose a job is.

        ``[aiptraining] deployment``, else the connection's; empty only on ``local``.

        :raises ConnectionSettingsError: neither is set.
        """
        name = conf.get("aiptraining", "deployment", fallback="") or self.settings.deployment
        if not name and self.settings.service != LOCAL:
            raise ConnectionSettingsError(
                "This Airflow has no deployment name: another one that uses the same project could "
                "take its jobs for its own. Set [aiptraining] deployment in airflow.cfg, or "
                f"'deployment' on connection {self.gcp_conn_id!r}, to a name of its own, e.g. "
                "'prod'."
            )
        return str(name)

    def _is_anonymous(self, settings: ConnectionSettings) -> bool:
        anonymous = self.extras.get("is_anonymous")
        if isinstance(anonymous, str):
            raise ConnectionSettingsError(
                f"Connection {self.gcp_conn_id!r}: is_anonymous is the text {anonymous!r}; write "
                "true or false without quotes."
            )
        if anonymous:
            return True
        has_key = any(self._get_field(name, None) for name in _CREDENTIAL_EXTRAS)
        return settings.service == LOCAL and not has_key and not self.impersonation_chain

    def get_credentials_and_project_id(self) -> tuple[Credentials, str | None]:
        """Return the connection's credentials and project; anonymous ones for ``local``."""
        if self._is_anonymous(self.settings):
            default = LOCAL_PROJECT if self.settings.service == LOCAL else None
            return AnonymousCredentials(), self._get_field("project", None) or default  # type: ignore[no-untyped-call]
        try:
            return super().get_credentials_and_project_id()
        except GoogleAuthError as error:
            # Not a mistake of the connection for sure: a metadata server may be away for a moment.
            raise translate(error, f"Connection {self.gcp_conn_id!r}") from error
        except (AirflowException, LookupError, ValueError, TypeError, OSError) as error:
            raise ConnectionSettingsError(
                f"Connection {self.gcp_conn_id!r}: its credentials can't be used: "
                f"{type(error).__name__}: {error}"
            ) from error

    def get_service(
        self, project_id: str | None = None, *, api_endpoint: str | None = None
    ) -> MLv1Service:
        """Return the training service.

        :param project_id: of the jobs; the connection's where not given.
        :param api_endpoint: URL to use in place of the connection's (a ledger's: where a running
            job was sent to).
        :raises ConnectionSettingsError: no project is given anywhere, or the service isn't there
            yet in this version.
        """
        settings = self.settings
        if settings.service == VERTEX_AI:
            raise ConnectionSettingsError(
                f"Connection {self.gcp_conn_id!r}: service 'vertex_ai' isn't supported by this "
                "version of airflow-aiptraining; use 'local' or 'ml_v1'."
            )
        endpoint = settings.api_endpoint if api_endpoint is None else api_endpoint
        logging_endpoint = settings.logging_endpoint
        if settings.service == LOCAL and logging_endpoint == settings.api_endpoint:
            # The embedded service keeps its jobs' logs itself.
            logging_endpoint = endpoint
        there = replace(settings, api_endpoint=endpoint, logging_endpoint=logging_endpoint)
        if not self._is_anonymous(there):
            there.check_no_cleartext_tokens(self.gcp_conn_id)
        project = project_id or self.project_id
        if not project:
            raise ConnectionSettingsError(
                f"Connection {self.gcp_conn_id!r} names no project, and the task neither: set the "
                "connection's project or the operator's project_id."
            )
        return MLv1Service(
            check_project(project, self.gcp_conn_id),
            self.get_credentials(),
            api_endpoint=endpoint,
            logging_endpoint=logging_endpoint,
        )

    def get_storage_client(self, project_id: str | None = None) -> Client:
        """Return Google's own Cloud Storage client for the connection's storage endpoint."""
        from google.api_core.client_options import ClientOptions
        from google.cloud.storage import Client

        endpoint = self.settings.storage_endpoint
        return Client(
            project=project_id or self.project_id or None,
            credentials=self.get_credentials(),
            client_options=ClientOptions(api_endpoint=endpoint) if endpoint else None,
        )

    def test_connection(self) -> tuple[bool, str]:
        """Reach the service and say what was reached."""
        try:
            service = self.get_service()
            jobs = list(service.list_jobs(limit=100))
        except (AIPTrainingError, ServiceError) as error:
            return False, str(error)
        except Exception as error:  # a key that can't be read, a token endpoint that is away ...
            return False, f"{type(error).__name__}: {error}"
        where = service.api_endpoint or "https://ml.googleapis.com"
        kind = "embedded training service" if self.settings.service == LOCAL else "ML v1 API"
        count = f"{len(jobs)}" if len(jobs) < 100 else "100 or more"
        active = sum(job.get("state") in ("QUEUED", "PREPARING", "RUNNING") for job in jobs)
        return True, (
            f"Reached the {kind} at {where}: project {service.project_id!r}, {count} jobs, "
            f"{active} of them active."
        )
