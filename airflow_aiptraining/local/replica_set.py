"""The replicas of one job: written down together, started once each, watched until one decides.

What the service knows is on disk before it acts on it: the rows of all replicas before the first is
started, the deciding end before the others are stopped, a restart's row before its start.  So a
service that was killed goes on wherever it was.
"""

from __future__ import annotations

import asyncio
import json
import math
import shlex
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_aiptraining.core import cluster
from airflow_aiptraining.local import replica_env, replicas
from airflow_aiptraining.local.job_folder import SERVICE_TASK, JobFolder
from airflow_aiptraining.local.job_store import Job, JobStore, Replica
from airflow_aiptraining.local.ports import HOST, Ports
from airflow_aiptraining.local.replica_failures import (
    MAX_RESTARTS,
    SETTLE_SECONDS,
    is_transient,
    status,
)
from airflow_aiptraining.local.replicas import Exit, ReplicaProcess, Stage

MASTER = "master"
_POLL_SECONDS = 0.05
_OVER = frozenset({Stage.ENDED, Stage.LOST})


@dataclass(frozen=True)
class End:
    """How a replica ended."""

    replica: Replica
    result: Exit

    @property
    def is_success(self) -> bool:
        """Tell whether it ended as it should."""
        return self.result.returncode == 0

    @property
    def moment(self) -> float:
        """Return when; nobody knows when a lost one did."""
        return math.inf if self.result.ended is None else self.result.ended


class ReplicaSet:
    """All replicas of a job.

    :param job: whose they are.
    :param service_url: where they reach this service.
    """

    def __init__(
        self, job: Job, *, store: JobStore, folder: JobFolder, ports: Ports, service_url: str
    ) -> None:
        self._job = job
        self._store = store
        self._folder = folder
        self._ports = ports
        self._service_url = service_url
        self._processes: dict[str, ReplicaProcess] = {}
        self._current: list[Replica] = []
        self._reload()

    @property
    def is_planned(self) -> bool:
        """Tell whether the replicas are written down."""
        return bool(self._current)

    async def plan(self, python: Path) -> None:
        """Write down all replicas, ready to be started.

        :param python: the interpreter of their environment.
        :raises NoFreePortError: there aren't as many ports as the job needs.
        """
        places = list(cluster.replicas(self._job.input))
        needed = sum(cluster.has_address(role) for role, _ in places)
        with self._ports.held(needed) as ports:
            free = iter(ports)
            planned = [
                Replica(
                    uuid.uuid4().hex,
                    self._job.uid,
                    role,
                    position,
                    address=f"{HOST}:{next(free)}" if cluster.has_address(role) else "",
                )
                for role, position in places
            ]
            addresses: dict[str, list[str]] = {}
            for replica in planned:
                addresses.setdefault(replica.role, []).append(replica.address)
            try:
                for replica in planned:
                    self._prepare(replica, python, self._tf_config(replica, addresses))
                    await asyncio.sleep(0)  # others' turn: each waits for the disk
            except BaseException:
                for replica in planned:
                    self._process(replica).discard()
                raise
            # From here on processes may exist: the rows say where to look for them.
            self._store.add_replicas(planned)
        self._current = planned

    async def start(self) -> None:
        """Start those that nobody has started, and return when all are up."""
        for replica in self._current:
            self._process(replica).start()  # not in a thread: a cancel must find it, or not at all
            await asyncio.sleep(0)
        for replica in self._current:
            while self._stage(replica) in {Stage.ABSENT, Stage.STARTING}:
                await asyncio.sleep(_POLL_SECONDS / 5)

    async def decision(self) -> End:
        """Wait for the end that decides the job, and write it down.

        The master's success does, as does the failure of any replica that isn't restarted.
        """
        for replica in self._current:
            # A service may have ended between a restart's row and its start.
            self._process(replica).start()
        while True:
            ends = [
                End(replica, self._process(replica).exit())
                for replica in self._current
                if self._stage(replica) in _OVER
            ]
            if end := deciding(ends):
                self._record(end)
                return end
            for end in ends:
                if _may_restart(end):
                    await self._restart(end)
            await asyncio.sleep(_POLL_SECONDS)

    async def kill(self) -> None:
        """End all with all that came of them."""
        await replicas.kill(
            self._process(replica) for replica in self._store.replicas(self._job.uid)
        )

    def unfinished(self) -> list[Replica]:
        """Return those that haven't ended."""
        return [replica for replica in self._current if self._stage(replica) not in _OVER]

    def wrote_to_local_gs(self) -> list[Replica]:
        """Return those that made a folder ``gs:`` where they ran."""
        return [each for each in self._current if (self._process(each).work / "gs:").exists()]

    def elsewhere(self) -> list[tuple[Replica, str]]:
        """Return running ones that were told another address of this service, and which."""
        told = [
            (replica, self._process(replica).environment.get("STORAGE_EMULATOR_HOST", ""))
            for replica in self.unfinished()
        ]
        return [(replica, url) for replica, url in told if url != self._service_url]

    def _prepare(self, replica: Replica, python: Path, tf_config: dict[str, Any]) -> None:
        job, process = self._job, self._process(replica)
        argv = replica_env.command(python, job.input)
        process.prepare(
            argv,
            replica_env.environment(
                process.folder,
                uid=replica.uid,
                python=python,
                project=job.project,
                job_id=job.job_id,
                service_url=self._service_url,
                tf_config=tf_config,
            ),
        )
        log = self._folder.log(replica.task_name)
        if replica.role != MASTER:
            log.write(f"Running module {job.input['pythonModule']}.")
        log.write(f"Running command: {shlex.join(['python3', *argv[1:]])}")

    def _tf_config(self, replica: Replica, addresses: dict[str, list[str]]) -> dict[str, Any]:
        return cluster.tf_config(
            self._job.input,
            addresses,
            replica.role,
            replica.position,
            cloud=f"local-{self._job.uid[:12]}",
            trial=replica.trial,
        )

    async def _restart(self, end: End) -> None:
        """Start a replica anew in its place, with the same address."""
        old = self._process(end.replica)
        # What it left behind may hold its port.
        await replicas.kill([old])
        again = replace(
            end.replica, uid=uuid.uuid4().hex, attempt=end.replica.attempt + 1, exit=None
        )
        text = (
            f"The replica {again.role} {again.position} exited with a non-zero "
            f"{status(end.result)}; it is started again at the same address, restart "
            f"{end.replica.attempt} of {MAX_RESTARTS}."
        )
        for task in (again.task_name, SERVICE_TASK):
            self._folder.log(task).write(text, "W")
        python = Path(old.argv[0])
        self._prepare(again, python, json.loads(old.environment["TF_CONFIG"]))
        self._record(end)
        self._store.add_replicas([again])
        self._reload()
        self._process(again).start()

    def _record(self, end: End) -> None:
        result = end.result
        self._store.set_exit(
            end.replica.uid, {"returncode": result.returncode, "error": result.error}
        )

    def _reload(self) -> None:
        latest: dict[tuple[str, int], Replica] = {}
        for replica in self._store.replicas(self._job.uid):
            latest[replica.role, replica.position] = replica  # in its first attempt's place
        self._current = list(latest.values())

    def _stage(self, replica: Replica) -> Stage:
        return self._process(replica).stage()

    def _process(self, replica: Replica) -> ReplicaProcess:
        # Kept, as one that was started here knows more than its files say.
        if replica.uid not in self._processes:
            self._processes[replica.uid] = self._folder.process(replica.uid)
        return self._processes[replica.uid]


def _may_restart(end: End) -> bool:
    return is_transient(end.result) and end.replica.attempt <= MAX_RESTARTS


def deciding(ends: Iterable[End]) -> End | None:
    """Return the end that decides a job, if there is one by now.

    :param ends: of its replicas, as far as they have ended.
    """
    ends = list(ends)
    for end in ends:
        # Written down already: what came after it came of it.
        if end.replica.exit is not None and not _may_restart(end):
            return end
    master = next((end for end in ends if end.replica.role == MASTER), None)
    failed = [end for end in ends if not end.is_success and not _may_restart(end)]
    first = min(failed, key=lambda end: end.moment, default=None)
    if master and master.is_success:
        # The others lose their master when it is done; some then fail.
        if first is None or master.moment <= first.moment + SETTLE_SECONDS:
            return master
        return first
    if first is None or first.replica.role == MASTER or first.result.ended is None:
        return first
    has_settled = master is not None or time.time() > first.moment + SETTLE_SECONDS
    return first if has_settled else None
