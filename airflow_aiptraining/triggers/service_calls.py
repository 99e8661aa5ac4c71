"""The training service's verbs, called from an event loop: in threads, with fresh credentials."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_aiptraining.exceptions import (
    PermissionDeniedError,
    ServiceError,
    TransientServiceError,
)
from airflow_aiptraining.triggers.budget import DEFAULT_BUDGET, process_budget

if TYPE_CHECKING:
    from airflow_aiptraining.services.ml_v1 import MLv1Service

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Calls at the same time, per place.
THREADS = 4
#: Credentials and connections are made anew after so many seconds ...
SERVICE_LIFETIME = 1_800.0
#: ... and when they aren't accepted, but no sooner than this after the last time.
REMAKE_PAUSE = 5.0
#: A call is given up after so many seconds, even if its answer still drips in.
CALL_LIMIT = 100.0
#: Calls that were given up and may go on in their threads; more aren't started.
MOST_STUCK = 8


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

    def __str__(self) -> str:
        return f"project {self.project_id!r} at {self.api_endpoint or 'ml.googleapis.com'}"


class ServiceCalls:
    """Calls the service of one place, within the process's budget.

    :param key: the place.
    :param request_budget: requests a minute, for all places of the process.
    """

    def __init__(self, key: WatchKey, request_budget: int = DEFAULT_BUDGET) -> None:
        self.key = key
        self.budget = process_budget(request_budget)
        #: Requests that this place made so far, and the seconds that the budget held them back.
        self.spent, self.held_back = 0, 0.0
        self._turn = asyncio.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._stuck: list[Future[Any]] = []
        self._service: MLv1Service | None = None
        self._made_at = 0.0
        self._making = asyncio.Lock()

    async def call(self, verb: Callable[[MLv1Service], T], *, at_once: bool = False) -> T:
        """Return what a verb returns, as soon as the budget allows.

        :param at_once: the call is counted, but doesn't wait.
        :raises TransientServiceError: no answer, or one that can't be understood.
        :raises ServiceError: as the verb says.
        """
        service = await self._current_service()
        if at_once:
            self._spend()
        else:
            # One at a time, so that places have equal shares however many calls they would make.
            async with self._turn:
                await asyncio.sleep(self._spend())
        try:
            return await self._in_thread(lambda: verb(service))
        except PermissionDeniedError:
            if time.monotonic() - self._made_at < REMAKE_PAUSE:
                raise
            # A rotated key or an expired chain: one more time with credentials made anew.
            if self._service is service:
                self._service = None
            service = await self._current_service()
            self._spend()
            return await self._in_thread(lambda: verb(service))
        except ServiceError as error:
            if type(error) is ServiceError and not error.status and not _is_untrusted(error):
                # A 200 that holds no job, for instance: says nothing about the job.
                raise TransientServiceError(str(error)) from error
            raise

    def close(self) -> None:
        """Let the threads end, each after the call that it may be in."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _spend(self) -> float:
        """Take a request out of the budget; return the seconds to wait before it may be sent."""
        pause = self.budget.reserve()
        self.spent += 1
        self.held_back += pause
        return pause

    async def _current_service(self) -> MLv1Service:
        async with self._making:
            if self._service is None or time.monotonic() - self._made_at > SERVICE_LIFETIME:
                try:
                    self._service = await self._in_thread(self._make_service)
                except Exception as error:
                    if self._service is None:
                        raise
                    # The old one was good so far; Airflow's database may be away, for instance.
                    log.warning("Credentials for %s can't be made anew: %s", self.key, error)
                self._made_at = time.monotonic()
            return self._service

    async def _in_thread(self, call: Callable[[], T]) -> T:
        self._stuck = [future for future in self._stuck if not future.done()]
        if len(self._stuck) >= MOST_STUCK:
            raise TransientServiceError(
                f"{len(self._stuck)} calls to the service have hung for over {CALL_LIMIT:.0f} s."
            )
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="aiptraining-watch")
        pool = self._pool
        future = pool.submit(call)
        answer = asyncio.wrap_future(future)
        try:
            await asyncio.wait({answer}, timeout=CALL_LIMIT)
            if answer.done():
                return answer.result()
        finally:
            # What comes later is read by nobody, and its event loop may be closed by then.
            answer.cancel()
        if not future.done():
            self._stuck.append(future)
        if self._pool is pool:
            # Its thread may hang for hours: the next call gets another.
            pool.shutdown(wait=False)
            self._pool = None
        raise TransientServiceError(f"No whole answer within {CALL_LIMIT:.0f} s.")

    def _make_service(self) -> MLv1Service:
        from airflow_aiptraining.hooks.training import AIPTrainingHook

        hook = AIPTrainingHook(self.key.gcp_conn_id, list(self.key.impersonation_chain) or None)
        return hook.get_service(self.key.project_id, api_endpoint=self.key.api_endpoint)


def _is_untrusted(error: ServiceError) -> bool:
    return isinstance(error.__cause__, ssl.SSLCertVerificationError)


def backoff(error: BaseException, failures: int) -> float:
    """Return the seconds to wait after so many calls in a row that weren't answered."""
    # Imported here: tenacity is not for those who only parse a DAG.
    from airflow_aiptraining.services.retries import pause_after

    return pause_after(error, failures)
