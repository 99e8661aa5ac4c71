"""A real Airflow in a temporary home: four processes, SQLite, LocalExecutor, free ports.

Scheduler, triggerer, dag-processor and api-server are processes of their own, as in production, so
that a test can kill each of them.  ::

    with AirflowCluster(dags=[Path("dags")]) as airflow:
        run_id = airflow.api.trigger("my_dag")
        airflow.api.wait_for_run("my_dag", run_id)
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from airflow_api import AirflowApi
from processes import Component, Guard, end_processes_of, signals_held_off, stop, wait_for

#: What the health endpoint calls them; the api-server is the one that answers.
_HEALTH_NAMES = {
    "scheduler": "scheduler",
    "triggerer": "triggerer",
    "dag-processor": "dag_processor",
}
COMPONENTS = ("api-server", *_HEALTH_NAMES)
USER = "admin"


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class AirflowCluster:
    """A running Airflow; see the module's text.

    :param dags: folders with DAG files; each becomes a DAG bundle named like the folder.
    :param home: ``AIRFLOW_HOME``; without it a temporary one, removed at the end.
    :param env: added to the environment of every component (``AIRFLOW_CONN_...``, settings).
    :param parallelism: worker processes, and so tasks that run at one time.
    :param start_timeout: seconds that all components together may need to become healthy.
    """

    def __init__(
        self,
        dags: Sequence[Path],
        *,
        home: Path | None = None,
        env: Mapping[str, str] | None = None,
        parallelism: int = 4,
        start_timeout: float = 120,
    ) -> None:
        self._owns_home = home is None
        self.home = home or Path(tempfile.mkdtemp(prefix="aiptraining-airflow-"))
        self.home.mkdir(parents=True, exist_ok=True)
        self.logs = self.home / "component-logs"
        self.logs.mkdir(exist_ok=True)
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.user = USER
        self.password = secrets.token_urlsafe(9)
        self.start_timeout = start_timeout
        self._dags = [folder.resolve() for folder in dags]
        self.env = self._environment(env or {}, parallelism)
        self.components = {name: self._component(name) for name in COMPONENTS}
        self._api: AirflowApi | None = None
        self._guard: Guard | None = None

    @property
    def api(self) -> AirflowApi:
        """The REST client, logged in."""
        if self._api is None:
            self._api = AirflowApi(self.base_url, self.user, self.password)
        return self._api

    # -- life ------------------------------------------------------------------------------------

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
        """Make the database, start everything and return once all of it is healthy.

        :raises ProcessEndedError: a component ended; the text has the end of its log.
        :raises TimeoutError: one wasn't healthy in time.
        """
        try:
            self._guard = Guard(self.home, remove=self._owns_home)
            self._write_files()
            self.run_cli(["db", "migrate"])
            for component in self.components.values():
                component.start()
            self.wait_until_healthy()
        except BaseException:
            self.stop()
            raise

    def wait_until_healthy(
        self, names: Sequence[str] = COMPONENTS, timeout: float | None = None
    ) -> None:
        """Return once these components run and Airflow's health endpoint says so."""
        last: dict[str, Any] = {}

        def healthy() -> bool:
            last.clear()
            last.update(self.health())
            return bool(last) and all(
                (last.get(_HEALTH_NAMES[name]) or {}).get("status") == "healthy"
                for name in names
                if name in _HEALTH_NAMES
            )

        def explain() -> str:
            tails = "\n".join(f"{name}: {self.components[name].tail(8)}" for name in names)
            return f"a healthy Airflow; its health: {last or 'no answer'}\n{tails}"

        wait_for(
            healthy,
            timeout=timeout or self.start_timeout,
            what=explain,
            components=[self.components[name] for name in names],
        )

    def health(self) -> dict[str, Any]:
        """Return what the health endpoint says; empty where it doesn't answer."""
        try:
            answer = httpx.get(f"{self.base_url}/api/v2/monitor/health", timeout=5, trust_env=False)
            return dict(answer.json()) if answer.status_code == 200 else {}
        except (httpx.HTTPError, ValueError):
            return {}

    def stop(self) -> list[str]:
        """End everything that was started, and remove the home if it is ours.

        :return: processes that could not be ended, as text; empty is good.
        """
        with signals_held_off():
            if self._api is not None:
                self._api.close()
                self._api = None
            # The api-server last: workers and triggers that end have something to tell it.
            last = self.components["api-server"]
            stop([component for component in self.components.values() if component is not last])
            stop([last])
            left = end_processes_of(self.home)
            if self._guard is not None:
                self._guard.close()
                self._guard = None
            if self._owns_home:
                shutil.rmtree(self.home, ignore_errors=True)
        return left

    def add_triggerer(self, name: str) -> Component:
        """Start one more triggerer beside the first; it ends with the others."""
        self.components[name] = self._component(name, command="triggerer")
        self.components[name].start()
        return self.components[name]

    def kill(self, name: str, signum: int) -> None:
        """Send a signal to one component's process group (not to tasks: they have their own)."""
        self.components[name].send(signum)

    # -- the command line ------------------------------------------------------------------------

    def run_cli(self, arguments: Sequence[str], *, timeout: float = 120) -> str:
        """Return the output of ``airflow <arguments>``.

        :raises RuntimeError: it ended with another code than 0; the text has its output.
        """
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", *arguments],
            env=self.env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            process.wait(10)
            raise
        if process.returncode != 0:
            end = "\n".join(output.splitlines()[-25:])
            raise RuntimeError(f"airflow {' '.join(arguments)}: code {process.returncode}\n{end}")
        return output

    # -- how it is set up ------------------------------------------------------------------------

    def _component(self, name: str, command: str = "") -> Component:
        command = command or name
        argv = [sys.executable, "-m", "airflow", command]
        if command == "api-server":
            argv += ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        elif command in ("scheduler", "triggerer"):
            # The api-server reads the log files itself: they are on the same disk.
            argv += ["--skip-serve-logs"]
        return Component(name, argv, env=self.env, log=self.logs / f"{name}.log", cwd=self.home)

    def _environment(self, added: Mapping[str, str], parallelism: int) -> dict[str, str]:
        # Nothing of a person's own Airflow may reach this one, nor a setting that forbids .pyc
        # files: without them every process compiles Airflow again.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("AIRFLOW") and name != "PYTHONDONTWRITEBYTECODE"
        }
        bundles = [
            {
                "name": folder.name,
                "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
                "kwargs": {"path": str(folder), "refresh_interval": 5},
            }
            for folder in self._dags
        ]
        settings = {
            "CORE__DAGS_FOLDER": str(self._dags[0]),
            "CORE__EXECUTION_API_SERVER_URL": f"{self.base_url}/execution/",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__PARALLELISM": str(parallelism),
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "API__BASE_URL": self.base_url,
            "API__HOST": "127.0.0.1",
            "API__PORT": str(self.port),
            "API__SECRET_KEY": secrets.token_hex(16),
            "API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
            # The timeout: how long a writer waits for its turn, see airflow_local_settings.py.
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home / 'airflow.db'}?timeout=30",
            "DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
            "DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "10",
            "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "LOGGING__BASE_LOG_FOLDER": str(self.home / "logs"),
            "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
            "TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
            "WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        }
        return {
            **inherited,
            "AIRFLOW_HOME": str(self.home),
            **{f"AIRFLOW__{name}": value for name, value in settings.items()},
            **added,
        }

    def _write_files(self) -> None:
        passwords = self.home / "passwords.json"
        passwords.touch(mode=0o600)
        passwords.write_text(json.dumps({USER: self.password}))
        (self.home / "config").mkdir(exist_ok=True)
        shutil.copy(Path(__file__).with_name("airflow_local_settings.py"), self.home / "config")
