"""Reading the states of many jobs from one process.

All triggers of a triggerer share one event loop.  A :class:`JobWatch` stands for one place where
jobs run, and is shared by everyone in the process who waits for jobs there: one set of credentials,
one pool of threads with an HTTP connection each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow_aiptraining.exceptions import PermissionDeniedError

if TYPE_CHECKING:
    from airflow_aiptraining.services.ml_v1 import MLv1Service

T = TypeVar("T")

#: Calls at the same time, per place.
THREADS = 4
#: Credentials and connections are made anew after so many seconds.
SERVICE_LIFETIME = 1_800.0


@dataclass(frozen=True)
class WatchKey:
    """A place where jobs run, and the identity that reads them.

    :param gcp_conn_id: the Airflow connection.
    :param impersonation_chain: of the task; empty for the connection's own.
    :param service: ``local``, ``ml_v1`` ...
    :param api_endpoint: URL of the service; empty for Google's own.
    :param project_id: whose jobs.
    :param region: empty where the service has none.
    """

    gcp_conn_id: str
    impersonation_chain: tuple[str, ...]
    service: str
    api_endpoint: str
    project_id: str
    region: str = ""


class JobWatch:
    """Reads jobs of one place.  Get it by :meth:`shared`."""

    _shared: ClassVar[dict[tuple[WatchKey, asyncio.AbstractEventLoop], JobWatch]] = {}

    def __init__(self, key: WatchKey) -> None:
        self.key = key
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="aiptraining-watch")
        self._service: MLv1Service | None = None
        self._made_at = 0.0
        self._making = asyncio.Lock()
        self._users = 0

    @classmethod
    def shared(cls, key: WatchKey) -> JobWatch:
        """Return the process's watch of that place; use it as ``async with``."""
        return cls._shared.setdefault((key, asyncio.get_running_loop()), cls(key))

    async def __aenter__(self) -> JobWatch:
        self._users += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._users -= 1
        if not self._users:
            self._shared.pop((self.key, asyncio.get_running_loop()), None)
            self._pool.shutdown(wait=False)

    async def get_job(self, job_id: str) -> dict[str, Any]:
        """Return the Job resource.

        :raises ServiceError: see :meth:`MLv1Service.get_job`.
        """
        return await self._call(lambda service: service.get_job(job_id))

    async def cancel_job(self, job_id: str) -> None:
        """Ask the service to cancel a job."""
        await self._call(lambda service: service.cancel_job(job_id))

    async def _call(self, verb: Callable[[MLv1Service], T]) -> T:
        service = await self._current_service()
        try:
            return await self._in_thread(lambda: verb(service))
        except PermissionDeniedError:
            # A rotated key or an expired chain: one more time with credentials made anew.
            self._made_at = 0.0
            service = await self._current_service()
            return await self._in_thread(lambda: verb(service))

    async def _current_service(self) -> MLv1Service:
        async with self._making:
            if self._service is None or time.monotonic() - self._made_at > SERVICE_LIFETIME:
                self._service = await self._in_thread(self._make_service)
                self._made_at = time.monotonic()
            return self._service

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def _make_service(self) -> MLv1Service:
        from airflow_aiptraining.hooks.training import AIPTrainingHook

        hook = AIPTrainingHook(self.key.gcp_conn_id, list(self.key.impersonation_chain) or None)
        return hook.get_service(self.key.project_id, api_endpoint=self.key.api_endpoint)
