"""Python interpreters of this machine: asked what they are, and found by version."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import uv

_ASK = "import json, sys; print(json.dumps([list(sys.version_info[:2]), sys.version]))"
_SECONDS = 20
# uv makes no environments for older ones.
_OLDEST = (3, 6)


@dataclass(frozen=True)
class Interpreter:
    """A Python.

    :param path: its executable.
    :param version: major and minor version, ``3.11``.
    :param build: ``sys.version``.
    """

    path: str
    version: str
    build: str


OWN = Interpreter(sys.executable, f"{sys.version_info[0]}.{sys.version_info[1]}", sys.version)
"""The one that the service runs on."""


@functools.cache
def inspect(command: str) -> Interpreter | None:
    """Return the interpreter at a path, or of a name on PATH; None where none runs there."""
    found = shutil.which(command)
    # Absolute: installers and replicas have working directories of their own.
    path = str(Path(found).absolute()) if found else ""
    # Scripts that only stand for a version (pyenv's shims) fail when they are run.
    try:
        (major, minor), build = json.loads(_output(path, "-I", "-c", _ASK) if path else "")
    except ValueError:
        return None
    return Interpreter(path, f"{major}.{minor}", build) if (major, minor) >= _OLDEST else None


@functools.cache
def find(version: str) -> Interpreter | None:
    """Return this machine's interpreter of a version; nothing is downloaded.

    :param version: ``3.11`` or ``3.11.4``, of which major and minor count.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < _OLDEST:
        return None
    version = match[0]
    if version == OWN.version:
        return OWN
    # PATH was looked at: uv is asked for those only that it has installed itself.
    for command in (f"python{version}", _found_by_uv(version)):
        found = inspect(command) if command else None
        if found and found.version == version:
            return found
    return None


def _found_by_uv(version: str) -> str:
    options = ("--managed-python", "--no-python-downloads", "--system")
    return _output(uv.find_uv_bin(), "python", "find", *options, version)


def _output(*command: str) -> str:
    """Return what a command prints; nothing if it fails."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
