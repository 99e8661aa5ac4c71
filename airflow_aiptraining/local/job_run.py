"""The life of one job: packages, environment, processes, end.

``JobRun.run`` starts wherever the store says that the job is, so a service that was killed goes on
with it: what was done isn't done again, what was started is watched again.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.local import replica_env
from airflow_aiptraining.local.environments import Environments, InstallError, Package, fetch
from airflow_aiptraining.local.job_store import Job, JobStore, Replica
from airflow_aiptraining.local.log_store import LogWriter
from airflow_aiptraining.local.object_store import ObjectStore
from airflow_aiptraining.local.replicas import Exit, ReplicaProcess, Stage

SERVICE_TASK = "service"
"""Task name of the service's own log lines about a job."""

_POLL_SECONDS = 0.05
_TRACEBACK = "Traceback (most recent call last):"
_MESSAGE_LINES = 20


class JobError(Exception):
    """The job can't go on; the text becomes its ``errorMessage``."""


class JobFolder:
    """Where everything about one job lies.

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
        folder: JobFolder,
        package_cache: Path,
        service_url: str,
        logs_url: str,
    ) -> None:
        self._uid = uid
        self._store = store
        self._objects = objects
        self._environments = environments
        self._folder = folder
        self._package_cache = package_cache
        self._service_url = service_url
        self._logs_url = logs_url
        self._processes: dict[str, ReplicaProcess] = {}

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
                if not self._store.replicas(self._uid):
                    await self._plan()
                await self._start()
                on_running(self._store.advance(self._uid, JobState.RUNNING))
                self._say("Job is running.")
            else:
                self._warn_if_moved()
            await self._watch()
        except JobError as error:
            self._fail(str(error))

    async def end_cancelled(self) -> None:
        """End all processes of a job that is CANCELLING, and say that it is CANCELLED."""
        for replica in self._store.replicas(self._uid):
            await self._process(replica).kill()
        self._say(f"The job was cancelled. {self.job.error_message}", "W")
        self._store.advance(self._uid, JobState.CANCELLED, output=self._consumed())

    # --- PREPARING ----------------------------------------------------------------------------

    async def _plan(self) -> None:
        """Make the environment and write down the replicas, ready to be started."""
        job = self.job
        master = Replica(uuid.uuid4().hex, job.uid, "master", 0)
        log = self._folder.log(master.task_name)
        log.write(f"Running module {job.input['pythonModule']}.")
        self._name_what_is_not_simulated(job, log)
        packages = await self._fetch(job.input["packageUris"], log)
        python = await self._install(packages, job, log)
        address = f"127.0.0.1:{_free_port()}"
        process = self._process(master)
        argv = replica_env.command(python, job.input)
        process.prepare(
            argv,
            replica_env.environment(
                process.folder,
                uid=master.uid,
                python=python,
                project=job.project,
                job_id=job.job_id,
                service_url=self._service_url,
                tf_config=replica_env.tf_config(
                    job.input, {"master": [address]}, "master", 0, cloud=f"local-{job.uid[:12]}"
                ),
            ),
        )
        log.write(f"Running command: {shlex.join(['python3', *argv[1:]])}")
        # From here on the process may exist: the rows say where to look for it.
        self._store.add_replicas([master])

    def _name_what_is_not_simulated(self, job: Job, log: LogWriter) -> None:
        """Say how this run differs from one on the real machines."""
        own = f"{sys.version_info.major}.{sys.version_info.minor}"
        asked = job.input.get("pythonVersion")
        if asked and asked != own:
            log.write(f"pythonVersion {asked} isn't on this machine: the job runs on {own}.", "W")
        if runtime := job.input.get("runtimeVersion"):
            log.write(
                f"runtimeVersion {runtime} isn't simulated: nothing is preinstalled, the job has "
                "its packages and what they require."
            )
        else:
            log.write(
                f"No runtimeVersion is given: the default one is Python {own} with nothing "
                "preinstalled; the job has its packages and what they require."
            )
        tier = job.input.get("scaleTier", "BASIC")
        machine = job.input.get("masterType")
        log.write(f"{machine or tier} is recorded and priced; the job runs on this machine.")

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

    async def _install(self, packages: Sequence[Package], job: Job, log: LogWriter) -> Path:
        key = self._environments.key(packages, job.input.get("runtimeVersion", ""))
        known = self._environments.python(key) is not None
        for package in packages:
            log.write(f"Installing the package: {package.uri}")
        if known:
            log.write(f"These packages were installed before: environment {key} is used again.")
        try:
            return await self._environments.ensure(key, packages)
        except InstallError as error:
            log.write(f"{error}\n{error.output}".rstrip(), "E")
            raise JobError(
                f"The replica master 0 could not install its packages. {error}"
                f"\n{error.output}\n\n{self._more_in_the_logs()}"
            ) from error

    # --- PREPARING -> RUNNING -------------------------------------------------------------------

    async def _start(self) -> None:
        """Start all replicas and return when all are up."""
        processes = [self._process(replica) for replica in self._store.replicas(self._uid)]
        for process in processes:
            process.start()  # not in a thread: a cancel must find it started, or not at all
        for process in processes:
            while process.stage() in {Stage.ABSENT, Stage.STARTING}:
                await asyncio.sleep(_POLL_SECONDS / 5)

    # --- RUNNING --------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Wait for the master's end, which is the job's."""
        replicas = self._store.replicas(self._uid)
        master = next(replica for replica in replicas if replica.role == "master")
        process = self._process(master)
        while process.stage() not in {Stage.ENDED, Stage.LOST}:
            await asyncio.sleep(_POLL_SECONDS)
        result = process.exit()
        log = self._folder.log(master.task_name)
        if (process.work / "gs:").exists():
            log.write(
                "The trainer wrote to a local folder named 'gs:', which is lost now: its library "
                "takes gs:// for a path on disk.",
                "W",
            )
        self._store.set_exit(master.uid, {"returncode": result.returncode, "error": result.error})
        for replica in replicas:
            await self._process(replica).kill()
        if result.returncode == 0:
            log.write("Module completed; cleaning up.")
            log.write("Clean up finished.")
            log.write("Task completed successfully.")
            self._say("Job completed successfully.")
            self._store.advance(self._uid, JobState.SUCCEEDED, output=self._consumed())
        else:
            log.write(f"Module {self.job.input['pythonModule']} ended: {_status(result)}.", "E")
            self._fail(_failure("master", 0, result, self._more_in_the_logs()))

    def _warn_if_moved(self) -> None:
        """Say so if replicas were started by a service that had another address."""
        for replica in self._store.replicas(self._uid):
            url = self._process(replica).environment.get("STORAGE_EMULATOR_HOST")
            if url != self._service_url:
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

    def _process(self, replica: Replica) -> ReplicaProcess:
        # Kept, as one that was started here knows more than its files say.
        if replica.uid not in self._processes:
            self._processes[replica.uid] = self._folder.process(replica.uid)
        return self._processes[replica.uid]

    def _say(self, text: str, severity: str = "I") -> None:
        self._folder.log(SERVICE_TASK).write(text, severity)

    def _more_in_the_logs(self) -> str:
        return f"To find out more about why your job exited please check the logs: {self._logs_url}"


def _failure(role: str, position: int, result: Exit, more: str) -> str:
    """Return ``errorMessage`` in the real service's words."""
    if result.error:
        return f"The replica {role} {position} was lost: {result.error}.\n\n{more}"
    if result.returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}:
        return (
            f"The replica {role} {position} ran out-of-memory and exited with a non-zero status "
            f"of 9(SIGKILL).\n\n{more}"
        )
    cause = "\n".join(_cause(result.stderr_tail))
    return (
        f"The replica {role} {position} exited with a non-zero {_status(result)}. "
        f"Termination reason: Error. \n{cause}\n\n{more}"
    )


def _status(result: Exit) -> str:
    code = result.returncode
    if code is None:
        return result.error
    if code < 0:
        return f"status of {-code}({signal.Signals(-code).name})"
    return f"status of {code}"


def _cause(stderr: Sequence[str]) -> list[str]:
    """Return the last traceback of stderr, shortened in the middle, else its last lines."""
    starts = [index for index, line in enumerate(stderr) if line.startswith(_TRACEBACK)]
    lines = list(stderr[starts[-1] :]) if starts else list(stderr[-_MESSAGE_LINES // 2 :])
    if len(lines) > _MESSAGE_LINES:
        lines = [lines[0], "  [...]", *lines[-_MESSAGE_LINES + 2 :]]
    return [re.sub(r"^(.{2000}).*", r"\1 …", line) for line in lines]


def _free_port() -> int:
    """Return a port that was free a moment ago: the replica may listen on it, or nobody does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
