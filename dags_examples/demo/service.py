"""The embedded training service, started as a process of its own: ``aiptraining serve``."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from processes import Component, Guard, end_processes_of, signals_held_off, stop, wait_for

if TYPE_CHECKING:
    from google.cloud.storage import Client

    from airflow_aiptraining.services.ml_v1 import MLv1Service

#: The project of the connection made here.
PROJECT = "local"


class EmbeddedService:
    """A running service; its URL is there once it is entered.

    :param data: its directory; without it a temporary one, removed at the end.
    :param env: added to its environment.
    :param options: more of ``aiptraining serve``.
    :param start_timeout: seconds that it may need until it is ready.
    """

    def __init__(
        self,
        *,
        data: Path | None = None,
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        start_timeout: float = 60,
    ) -> None:
        self._owns_data = data is None
        self.data = data or Path(tempfile.mkdtemp(prefix="aiptraining-service-"))
        self.data.mkdir(parents=True, exist_ok=True)
        self.start_timeout = start_timeout
        self._ready_file = self.data / "ready.json"
        argv = [sys.executable, "-m", "airflow_aiptraining.cli", "serve"]
        argv += ["--data", str(self.data), "--port", "0", "--ready-file", str(self._ready_file)]
        argv += options
        scratch = self.data / "tmp"
        scratch.mkdir(exist_ok=True)
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self.component = Component(
            "aiptraining serve",
            argv,
            env={
                **inherited,
                **(env or {}),
                "TMPDIR": str(scratch),  # what jobs leave behind goes with the rest
                "AIPTRAINING_DEMO_DATA": str(self.data),  # names it for processes_of
            },
            log=self.data / "service.log",
            cwd=self.data,
        )
        self.url = ""
        self._guard: Guard | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and return once it has said where it listens.

        :raises ProcessEndedError: it ended; the text has the end of its log.
        :raises TimeoutError: it wasn't ready in time.
        """
        try:
            self._guard = self._guard or Guard(self.data, remove=self._owns_data)
            self._ready_file.unlink(missing_ok=True)
            self.component.start()
            self.url = wait_for(
                self._ready,
                timeout=self.start_timeout,
                interval=0.05,
                what=lambda: f"the training service. {self.component.tail()}",
                components=[self.component],
            )
        except BaseException:
            self.stop()
            raise

    def _ready(self) -> str:
        try:
            return str(json.loads(self._ready_file.read_text())["ml"])
        except (OSError, ValueError):
            return ""  # not there yet, or half written

    def stop(self) -> list[str]:
        """End it and the jobs that still run, and remove its directory if it is ours.

        :return: processes that could not be ended, as text; empty is good.
        """
        with signals_held_off():
            stop([self.component])
            # Running jobs outlive the service on purpose; not this one, whose data goes away.
            left = end_processes_of(self.data)
            if self._guard is not None:
                self._guard.close()
                self._guard = None
            if self._owns_data:
                shutil.rmtree(self.data, ignore_errors=True)
        return left

    def restart(self, signum: int) -> None:
        """End it by a signal and start it again over the same data, at the same address."""
        self.component.send(signum)
        assert self.component.process is not None
        self.component.process.wait(30)
        self.start()

    def connection(self, bucket: str) -> dict[str, Any]:
        """Return the Airflow connection that reaches it.

        :param bucket: for staging; the example DAGs write their models there, too.
        """
        return {
            "conn_type": "aiptraining",
            "extra": {
                "service": "local",
                "api_endpoint": self.url,
                "project": PROJECT,
                "region": "us-central1",
                "staging_bucket": bucket,
            },
        }

    def storage_client(self) -> Client:
        """Return Google's own Cloud Storage client for the service's storage."""
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage import Client

        return Client(
            project=PROJECT,
            credentials=AnonymousCredentials(),
            client_options=ClientOptions(api_endpoint=self.url),
        )

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs, as the service's own API tells them."""
        return list(self._ml().list_jobs())

    def cancel(self, job_id: str) -> None:
        """Cancel a job, as a person does at the service itself."""
        self._ml().cancel_job(job_id)

    def _ml(self) -> MLv1Service:
        from google.auth.credentials import AnonymousCredentials

        from airflow_aiptraining.services.ml_v1 import MLv1Service

        return MLv1Service(
            PROJECT, AnonymousCredentials(), api_endpoint=self.url, logging_endpoint=self.url
        )
