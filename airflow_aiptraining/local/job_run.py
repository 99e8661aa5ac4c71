"""The life of one job: packages, environment, processes, end.

``JobRun.run`` starts wherever the store says that the job is, so a service that was killed goes on
with it: what was done isn't done again, what was started is watched again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_aiptraining.core.cluster import replica_count
from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.local.environments import Environments, InstallError, Package, fetch
from airflow_aiptraining.local.job_folder import SERVICE_TASK, JobFolder
from airflow_aiptraining.local.job_store import Job, JobStore
from airflow_aiptraining.local.log_store import LogWriter
from airflow_aiptraining.local.object_store import ObjectStore
from airflow_aiptraining.local.ports import NoFreePortError, Ports
from airflow_aiptraining.local.replica_failures import failure, status
from airflow_aiptraining.local.replica_set import ReplicaSet
from airflow_aiptraining.local.runtimes import Choice, Runtimes, advice

_MASTER_TASK = "master-replica-0"


class JobError(Exception):
    """The job can't go on; the text becomes its ``errorMessage``."""


class JobRun:
    """Drives one job.

    :param logs_url: address of the job's log for people, named in error messages.
    :param service_url: where replicas reach this service.
    """

    def __init__(
        self,
        uid: str,
        *,
        store: JobStore,
        objects: ObjectStore,
        environments: Environments,
        runtimes: Runtimes,
        folder: JobFolder,
        package_cache: Path,
        ports: Ports,
        service_url: str,
        logs_url: str,
    ) -> None:
        self._uid = uid
        self._store = store
        self._objects = objects
        self._environments = environments
        self._runtimes = runtimes
        self._folder = folder
        self._package_cache = package_cache
        self._service_url = service_url
        self._logs_url = logs_url
        self._replicas = ReplicaSet(
            self.job, store=store, folder=folder, ports=ports, service_url=service_url
        )

    @property
    def job(self) -> Job:
        """Return the job as it stands now."""
        return self._store.get_by_uid(self._uid)

    async def run(self, on_running: Callable[[Job], None]) -> None:
        """Bring the job to its end.  Cancelled, it leaves everything as it is.

        :param on_running: called when the job becomes RUNNING.
        :raises IllegalTransitionError: somebody cancelled the job.
        """
        try:
            if self.job.state is JobState.QUEUED:
                self._store.advance(self._uid, JobState.PREPARING)
            if self.job.state is JobState.PREPARING:
                if not self._replicas.is_planned:
                    await self._plan()
                await self._replicas.start()
                on_running(self._store.advance(self._uid, JobState.RUNNING))
                self._say("Job is running.")
            else:
                self._warn_if_moved()
            await self._watch()
        except JobError as error:
            self._fail(str(error))

    async def end_cancelled(self) -> None:
        """End all processes of a job that is CANCELLING, and say that it is CANCELLED."""
        await self._replicas.kill()
        self._say(f"The job was cancelled. {self.job.error_message}", "W")
        self._store.advance(self._uid, JobState.CANCELLED, output=self._consumed())

    async def end_crashed(self) -> None:
        """End all processes of a job that the service itself failed."""
        await self._replicas.kill()

    # --- PREPARING ----------------------------------------------------------------------------

    async def _plan(self) -> None:
        """Make the environment and write down the replicas, ready to be started."""
        job = self.job
        log = self._folder.log(_MASTER_TASK)
        log.write(f"Running module {job.input['pythonModule']}.")
        choice = await asyncio.to_thread(self._runtimes.choose, job.input)
        for text, severity in choice.notes:
            log.write(text, severity)
        self._name_what_is_not_simulated(job, log)
        packages = await self._fetch(job.input["packageUris"], log)
        python = await self._install(packages, choice, log)
        try:
            await self._replicas.plan(python)
        except NoFreePortError as error:
            raise JobError(str(error)) from error

    def _name_what_is_not_simulated(self, job: Job, log: LogWriter) -> None:
        """Say how this run differs from one on the real machines."""
        tier = job.input.get("scaleTier", "BASIC")
        machine = job.input.get("masterType")
        log.write(f"{machine or tier} is recorded and priced; the job runs on this machine.")
        if (count := replica_count(job.input)) > 1:
            log.write(f"All {count} replicas of the job run on this machine.")

    async def _fetch(self, uris: Sequence[str], log: LogWriter) -> list[Package]:
        packages = []
        for uri in uris:
            log.write(f"Downloading the package: {uri}")
            bucket, _, name = uri.removeprefix("gs://").partition("/")
            try:
                found = await asyncio.to_thread(self._objects.get, bucket, name)
                if found is None:
                    raise FileNotFoundError
                packages.append(
                    await asyncio.to_thread(fetch, uri, found.path, self._package_cache)
                )
            except FileNotFoundError:
                raise JobError(
                    f"The package {uri} is gone from storage since the job was created."
                ) from None
        return packages

    async def _install(self, packages: Sequence[Package], choice: Choice, log: LogWriter) -> Path:
        base = await asyncio.to_thread(choice.base, packages)
        key = self._environments.key(packages, base)
        known = self._environments.python(key) is not None
        for what in [] if known else base.further:
            log.write(f"Installing for the runtime: {what}")
        for package in packages:
            log.write(f"Installing the package: {package.uri}")
        if known:
            log.write(f"These packages were installed before: environment {key} is used again.")
        try:
            return await self._environments.ensure(key, packages, base)
        except InstallError as error:
            log.write(f"{error}\n{error.output}".rstrip(), "E")
            raise JobError(
                f"The replica master 0 could not install its packages. {error}"
                f"\n{error.output}\n\n{self._more_in_the_logs()}"
            ) from error

    # --- RUNNING --------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Wait for the end that decides the job, stop the other replicas, and tell."""
        end = await self._replicas.decision()
        self._warn_of_local_gs()
        others = [replica.task_name for replica in self._replicas.unfinished()]
        await self._replicas.kill()
        if others:
            self._say(f"{end.replica.task_name} has ended; stopped: {', '.join(others)}.")
        log = self._folder.log(end.replica.task_name)
        if end.is_success:
            log.write("Module completed; cleaning up.")
            log.write("Clean up finished.")
            log.write("Task completed successfully.")
            self._say("Job completed successfully.")
            self._store.advance(self._uid, JobState.SUCCEEDED, output=self._consumed())
        else:
            log.write(f"Module {self.job.input['pythonModule']} ended: {status(end.result)}.", "E")
            replica = end.replica
            more = advice(end.result.stderr_tail) + self._more_in_the_logs()
            self._fail(
                failure(replica.role, replica.position, end.result, replica.attempt - 1, more)
            )

    def _warn_of_local_gs(self) -> None:
        for replica in self._replicas.wrote_to_local_gs():
            self._folder.log(replica.task_name).write(
                "The trainer wrote to a local folder named 'gs:', which is lost now: its library "
                "takes gs:// for a path on disk.",
                "W",
            )

    def _warn_if_moved(self) -> None:
        """Say so if replicas were started by a service that had another address."""
        for replica, url in self._replicas.elsewhere():
            self._say(
                f"{replica.task_name} was started when this service was at {url}; it is at "
                f"{self._service_url} now, so the replica can't reach its storage.",
                "E",
            )

    # --- the end --------------------------------------------------------------------------------

    def _fail(self, message: str) -> None:
        self._say(message, "E")
        self._store.advance(
            self._uid, JobState.FAILED, error_message=message, output=self._consumed()
        )

    def _consumed(self) -> dict[str, Any]:
        """Return what the job would have cost so far, as ``trainingOutput`` says it."""
        from airflow_aiptraining.core.machines import consumed_ml_units

        job = self.job
        seconds = time.time() - job.start_time if job.start_time else 0.0
        units = consumed_ml_units(job.input, seconds)
        return {} if units is None else {"consumedMLUnits": round(units, 2)}

    def _say(self, text: str, severity: str = "I") -> None:
        self._folder.log(SERVICE_TASK).write(text, severity)

    def _more_in_the_logs(self) -> str:
        return f"To find out more about why your job exited please check the logs: {self._logs_url}"
