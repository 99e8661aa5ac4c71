"""The embedded service in a process of its own, for tests that stop, kill or share it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Service:
    """A running service.

    :param ready: its ready line: ``ml``, ``logging``, ``storage``, ``pid``.
    :param data: its data directory.
    """

    process: subprocess.Popen[bytes]
    ready: dict[str, Any]
    data: Path

    @property
    def ml(self) -> str:
        """Root of the ML v1 API."""
        return str(self.ready["ml"])

    @property
    def logging(self) -> str:
        """Root of Cloud Logging."""
        return str(self.ready["logging"])

    @property
    def storage(self) -> str:
        """Root of Cloud Storage."""
        return str(self.ready["storage"])

    @property
    def url(self) -> str:
        """Root of all of them: one port serves everything."""
        return self.ml

    def kill(self) -> None:
        """End it as a crash would: no handler runs."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End it in good order."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()


def start_service(data: Path, *options: str, env: Mapping[str, str] | None = None) -> Service:
    """Start a service over a data directory, on a free loopback port, and wait until it's ready.

    :param options: further options of ``aiptraining serve``.
    :param env: further variables of its environment.
    :raises RuntimeError: it ended, or isn't ready after a minute; with what it printed.
    """
    data.mkdir(parents=True, exist_ok=True)
    ready = data.with_name(f"{data.name}.ready.json")
    ready.unlink(missing_ok=True)
    printed = data.with_name(f"{data.name}.log")
    arguments = ["-m", "airflow_aiptraining.cli", "serve", "--data", str(data)]
    arguments += ["--ready-file", str(ready), *options]
    with printed.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=log,
            stderr=log,
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | dict(env or {}),
        )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if ready.exists() and (line := ready.read_text()).endswith("\n"):
            return Service(process, json.loads(line), data)
        time.sleep(0.02)
    process.kill()
    process.wait()
    raise RuntimeError(f"The service did not start:\n{printed.read_text()}")
