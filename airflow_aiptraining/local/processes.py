"""End processes and all that came of them.

Killing a process group leaves children that made a session of their own; walking the tree misses
those whose parent is gone; a scan for a variable in the environment finds them too, also after the
service was started again.  So: group, tree, scan (measured).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection

import psutil

_ROUNDS = 20
_PAUSE = 0.02


def marked(variable: str, values: Collection[str]) -> list[psutil.Process]:
    """Return this user's living processes that have *variable* set to one of *values*."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if (
                process.environ().get(variable) in values
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
    return found


def kill_marked(variable: str, *values: str) -> None:
    """Kill all processes that have *variable* set to one of *values*, and what they start then."""
    for _ in range(_ROUNDS):
        found = marked(variable, values)
        if not found:
            return
        for process in found:
            kill_tree(process)
        time.sleep(_PAUSE)


def kill_group(pid: int, variable: str, value: str) -> None:
    """Kill the group that *pid* leads and its tree, if the process is still the one meant.

    :param variable: the process is the one meant if it has this variable ...
    :param value: ... set to this; a process id may have been used again.
    """
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        if process.environ().get(variable) == value:
            children = process.children(recursive=True)
            os.killpg(pid, signal.SIGKILL)
            for child in children:
                with contextlib.suppress(psutil.Error):
                    child.kill()


def kill_tree(process: psutil.Process) -> None:
    """Kill a process and its descendants."""
    with contextlib.suppress(psutil.Error):
        family = [*process.children(recursive=True), process]
        for member in family:
            with contextlib.suppress(psutil.Error):
                member.kill()
