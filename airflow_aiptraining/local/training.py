"""The training half of the embedded service, put together: store, scheduler, routes."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.routing import BaseRoute

from airflow_aiptraining.local import jobs, log_entries
from airflow_aiptraining.local.environments import INSTALL_SECONDS, Environments
from airflow_aiptraining.local.job_checks import MAX_REPLICAS
from airflow_aiptraining.local.job_folder import JobFolder
from airflow_aiptraining.local.job_run import JobRun
from airflow_aiptraining.local.job_store import JobStore
from airflow_aiptraining.local.object_store import ObjectStore
from airflow_aiptraining.local.ports import Ports
from airflow_aiptraining.local.runtimes import Runtimes
from airflow_aiptraining.local.scheduler import Scheduler, default_capacity

SHUT_DOWN = "The embedded service was stopped together with its jobs."


@dataclass(frozen=True)
class TrainingSettings:
    """How the service runs jobs.

    :param service_url: where replicas reach this service, without a slash at the end.
    :param capacity: replicas that run at once; None: as many as this machine has processors, two
        at least.
    :param max_replicas: the most that one job may have.
    :param install_timeout: seconds that installing a job's packages may take.
    :param stop_jobs: at the end cancel all jobs and wait for them; else replicas go on, and the
        next service on the same data takes them up.
    :param runtimes: what runtime versions mean.
    """

    service_url: str = ""
    capacity: int | None = None
    max_replicas: int = MAX_REPLICAS
    install_timeout: float = INSTALL_SECONDS
    stop_jobs: bool = False
    runtimes: Runtimes = field(default_factory=Runtimes)


class Training:
    """Everything about jobs over one data folder.

    :param data: the service's data folder.
    :param objects: its storage, where packages are.
    """

    def __init__(self, data: Path, objects: ObjectStore, settings: TrainingSettings) -> None:
        # Absolute: replicas and installers have working directories of their own.
        self._data = data.resolve()
        self._data.mkdir(parents=True, exist_ok=True)
        self._objects = objects
        self._settings = settings
        self._store = JobStore(self._data / "jobs.sqlite")
        self._environments = Environments(
            self._data / "environments", timeout=settings.install_timeout
        )
        self._ports = Ports(self._store.ports)
        self._folders: dict[str, JobFolder] = {}
        self._scheduler = Scheduler(
            self._store,
            self._run,
            self._folder,
            capacity=settings.capacity or default_capacity(),
        )

    def routes(self) -> list[BaseRoute]:
        """Return the routes of ML v1 and Cloud Logging."""
        return [
            *jobs.routes(
                self._store,
                self._scheduler,
                self._objects,
                runtimes=self._settings.runtimes,
                max_replicas=self._settings.max_replicas,
            ),
            *log_entries.routes(self._store, self._folder),
        ]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run jobs; at the end stop, with or without them."""
        self._environments.clear_unfinished()
        warm = asyncio.create_task(asyncio.to_thread(_load_models))
        try:
            async with self._scheduler.running():
                yield
                if self._settings.stop_jobs:
                    await self._scheduler.cancel_all(SHUT_DOWN)
        finally:
            await asyncio.wait([warm])
            self._store.close()

    def _folder(self, uid: str) -> JobFolder:
        # One object a job: its writers keep the order of their lines.
        if uid not in self._folders:
            self._folders[uid] = JobFolder(self._data / "jobs" / uid)
        return self._folders[uid]

    def _run(self, uid: str) -> JobRun:
        job = self._store.get_by_uid(uid)
        return JobRun(
            uid,
            store=self._store,
            objects=self._objects,
            environments=self._environments,
            runtimes=self._settings.runtimes,
            folder=self._folder(uid),
            package_cache=self._data / "packages",
            ports=self._ports,
            service_url=self._settings.service_url,
            logs_url=f"{self._settings.service_url}/logs/{job.project}/{job.job_id}",
        )


def _load_models() -> None:
    """Load what the first create needs while nobody waits for it."""
    importlib.import_module("airflow_aiptraining.core.job")
    importlib.import_module("airflow_aiptraining.core.machines")
