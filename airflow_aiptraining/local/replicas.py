"""Processes of jobs: started once, watched by their files, ended with all that came of them.

A replica belongs to its wrapper (``replica_wrapper.py``), not to the service: a service that was
killed and started again finds each by its folder.  ``start`` may be called any number of times; the
wrapper's claim makes it one run.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from airflow_aiptraining.local import replica_env, replica_wrapper
from airflow_aiptraining.local.processes import kill_group, kill_marked
from airflow_aiptraining.local.replica_env import MARKER

WRAPPER_MARKER = "AIPTRAINING_WRAPPER"
OUTPUT_LIMIT = 64 * 1024 * 1024
"""Bytes of output kept for one replica."""
LINE_LIMIT = 100_000
"""Bytes kept of one line."""

_KILL_SECONDS = 10.0
_FOLDERS = ("work", "home", "gcloud", "hypertune")


class Stage(Enum):
    """How far a replica is."""

    ABSENT = "nobody has started it"
    STARTING = "its wrapper is up"
    RUNNING = "its process is up"
    ENDED = "its process has ended, its exit is written"
    LOST = "its wrapper died without a word"


@dataclass(frozen=True)
class Exit:
    """How a replica's process ended.

    :param returncode: negative for a signal; None where it couldn't be started.
    :param stderr_tail: its last lines on stderr.
    :param error: why it couldn't be started or followed; else empty.
    :param ended: when, in seconds since the epoch; None where nobody knows.
    """

    returncode: int | None
    stderr_tail: tuple[str, ...] = ()
    error: str = ""
    ended: float | None = None


class ReplicaProcess:
    """One replica's process.

    :param folder: its own folder, with everything about it.
    :param uid: its uid.
    """

    def __init__(self, folder: Path, uid: str) -> None:
        self.folder = folder
        self.uid = uid
        self._wrapper: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> Path:
        """Return the file of its log records."""
        return self.folder / "output.log"

    @property
    def work(self) -> Path:
        """Return its working directory."""
        return self.folder / "work"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that it was given."""
        return dict(self._spec()["env"])

    @property
    def argv(self) -> list[str]:
        """Return its command line."""
        return list(self._spec()["argv"])

    def _spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = json.loads((self.folder / "spec.json").read_text(encoding="utf-8"))
        return spec

    def prepare(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        output_limit: int = OUTPUT_LIMIT,
        line_limit: int = LINE_LIMIT,
    ) -> None:
        """Write down what is to run; ``start`` runs it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in _FOLDERS:
            (self.folder / name).mkdir(exist_ok=True)
        replica_env.temporary_folder(self.uid).mkdir(mode=0o700, exist_ok=True)
        replica_wrapper.write_atomically(
            self.folder / "spec.json",
            {
                "argv": list(argv),
                "env": dict(env),
                "cwd": str(self.work),
                "output_limit": output_limit,
                "line_limit": line_limit,
            },
        )

    def start(self) -> None:
        """Start it, if nobody has."""
        if self.stage() is not Stage.ABSENT:
            return
        with (self.folder / "wrapper.log").open("ab") as log:
            self._wrapper = subprocess.Popen(
                [sys.executable, "-S", "-E", replica_wrapper.__file__, self.folder / "spec.json"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Nothing of the service's environment: not even its secrets in /proc.
                env={"PATH": os.defpath, "LANG": "C.UTF-8", WRAPPER_MARKER: self.uid},
                cwd=self.folder,
                start_new_session=True,
            )

    def stage(self) -> Stage:
        """Return how far it is, by its files."""
        ended = self._wrapper is not None and self._wrapper.poll() is not None
        if (self.folder / "exit.json").exists():
            return Stage.ENDED
        claim = self.folder / "claim"
        if not claim.exists():
            if self._wrapper is None:
                return Stage.ABSENT
            return Stage.LOST if ended else Stage.STARTING
        if not _is_locked(claim):
            # It may have ended between the two looks.
            return Stage.ENDED if (self.folder / "exit.json").exists() else Stage.LOST
        return Stage.RUNNING if (self.folder / "pid.json").exists() else Stage.STARTING

    def exit(self) -> Exit:
        """Return how it ended; it must be ENDED or LOST."""
        if self.stage() is Stage.ENDED:
            result = json.loads((self.folder / "exit.json").read_text(encoding="utf-8"))
            return Exit(
                result["returncode"],
                tuple(result["stderr_tail"]),
                result["error"] or "",
                result["ended"],
            )
        said = (self.folder / "wrapper.log").read_text(encoding="utf-8", errors="replace").strip()
        return Exit(
            None,
            error="the process that watched it is gone (killed, or the machine was restarted)"
            + (f": {said[-500:]}" if said else ""),
        )

    def kill_group(self) -> None:
        """End its process and what is in its group or tree."""
        with contextlib.suppress(OSError, ValueError):
            pids: dict[str, Any] = json.loads((self.folder / "pid.json").read_text())
            kill_group(pids["trainer"], MARKER, self.uid)

    def discard(self) -> None:
        """Remove what it was given for its run."""
        folders = [self.folder / name for name in _FOLDERS]
        for folder in (*folders, replica_env.temporary_folder(self.uid)):
            shutil.rmtree(folder, ignore_errors=True)


async def kill(processes: Iterable[ReplicaProcess]) -> None:
    """End replicas with all that came of them; returns when nothing is left.

    All at once: each look at the machine's processes costs more than ending one.
    """
    every = list(processes)
    uids = [process.uid for process in every]
    until = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < until:
        alive = [p for p in every if p.stage() in {Stage.STARTING, Stage.RUNNING}]
        if not alive:
            break
        await asyncio.to_thread(_kill_once, alive)
        await asyncio.sleep(0.02)
    # Wrappers that don't end, or children of some that died.
    await asyncio.to_thread(kill_marked, WRAPPER_MARKER, *uids)
    # What the processes left behind.
    await asyncio.to_thread(kill_marked, MARKER, *uids)
    for process in every:
        await asyncio.to_thread(process.discard)


def _kill_once(processes: Sequence[ReplicaProcess]) -> None:
    for process in processes:
        process.kill_group()
    kill_marked(MARKER, *(process.uid for process in processes))


def _is_locked(claim: Path) -> bool:
    """Tell whether a wrapper holds the claim: the kernel lets go of it when the wrapper ends."""
    descriptor = os.open(claim, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
