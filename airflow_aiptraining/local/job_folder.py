"""Where everything about one job lies."""

from __future__ import annotations

from pathlib import Path

from airflow_aiptraining.local.log_store import LogWriter
from airflow_aiptraining.local.replicas import ReplicaProcess

SERVICE_TASK = "service"
"""Task name of the service's own log lines about a job."""


class JobFolder:
    """The folder of one job: its logs, its replicas.

    :param path: ``<data>/jobs/<uid>``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writers: dict[str, LogWriter] = {}

    def log(self, task_name: str) -> LogWriter:
        """Return the writer of the service's lines under a task's name."""
        if task_name not in self._writers:
            self._writers[task_name] = LogWriter(self.log_path(task_name))
        return self._writers[task_name]

    def log_path(self, task_name: str) -> Path:
        """Return the file of the service's lines under a task's name."""
        return self.path / "logs" / f"{task_name}.log"

    def process(self, uid: str) -> ReplicaProcess:
        """Return the process of replica *uid*."""
        return ReplicaProcess(self.path / "replicas" / uid, uid)
