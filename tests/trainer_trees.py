"""Source trees of trainers for tests, and what came of them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import uv

OFFLINE = ("--offline", "--no-deps", "--no-build-isolation")


def make_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below ``root``, their text dedented."""
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(textwrap.dedent(text).lstrip("\n"), "utf-8")
    return root


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of everything below ``folder``: equal means untouched."""
    found = {}
    for path in folder.rglob("*"):
        stat = path.lstat()
        found[str(path.relative_to(folder))] = (stat.st_size, stat.st_mtime_ns)
    return found


def run_installed(archive: Path, tmp_path: Path, module: str, *args: str) -> str:
    """Install an archive into a fresh environment, without a registry, and run a module of it.

    Source archives are built with the setuptools of the tests' environment.

    :return: what the module printed.
    """
    environment = tmp_path / "environment"
    python = environment / "bin" / "python"
    binary = uv.find_uv_bin()
    subprocess.run([binary, "venv", "-q", "--clear", "-p", sys.executable, environment], check=True)
    subprocess.run(
        [binary, "pip", "install", "-q", "-p", python, archive, *OFFLINE],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    done = subprocess.run(
        [python, "-m", module, *args],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
