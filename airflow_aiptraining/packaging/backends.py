"""Run a project's own build backend: here if its tools are installed, else isolated.

A worker often reaches no package registry. So nothing is fetched for a project that the installed
setuptools can build; only other backends get an environment of their own.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from airflow_aiptraining.exceptions import InvalidTrainerError
from airflow_aiptraining.packaging.source_tree import SOURCE_DATE

if TYPE_CHECKING:
    from build import ProjectBuilder

BUILD_TIMEOUT = 900.0
"""Seconds for one step of a build; fetching its tools has the limits of uv or pip."""

_OUTPUT_LINES = 25
_VERSION_FROM_GIT = re.compile(r"setuptools[_-]scm|hatch-vcs|versioneer|unable to detect version")

Distribution = Literal["wheel", "sdist"]


def build_distribution(
    folder: Path, distribution: Distribution, out_dir: Path, *, root: Path, log: logging.Logger
) -> Path:
    """Let a project's own backend build one archive.

    :param folder: the project, in a private copy: backends write into it.
    :param out_dir: where the archive goes.
    :param root: the project's real place, for messages.
    :return: the archive.
    :raises InvalidTrainerError: the project is broken, its build fails or hangs, or its build
        tools are not here and can't be fetched.
    """
    from build import BuildBackendException, BuildException, ProjectBuilder

    try:
        with _told_as_build_error(root):
            here = ProjectBuilder(str(folder), python_executable=sys.executable, runner=_run)
            missing = _missing(here.build_system_requires)
            if not missing:
                # Only now: asking a backend that isn't there would fail.
                missing = _missing(here.get_requires_for_build(distribution))
            if not missing:
                return Path(here.build(distribution, out_dir))
        tools = ", ".join(missing)
        log.info("Building %s in an isolated environment: %s not installed here", root, tools)
        with _isolated(root, here, distribution, missing) as builder, _told_as_build_error(root):
            return Path(builder.build(distribution, out_dir))
    # ValueError: a backend-path that leaves the project.
    except (BuildException, BuildBackendException, ValueError) as error:
        raise InvalidTrainerError(f"The trainer in {root} can't be built: {error}") from error


def _missing(requirements: set[str]) -> list[str]:
    """Return the build requirements that the installed packages don't satisfy."""
    from build import check_dependency

    # setuptools makes wheels by itself since 70.1; the name stands in most old files.
    return sorted(
        requirement
        for requirement in requirements
        if not re.match(r"wheel\b(?![-.])", requirement) and any(check_dependency(requirement))
    )


@contextmanager
def _isolated(
    root: Path, here: ProjectBuilder, distribution: Distribution, missing: Sequence[str]
) -> Iterator[ProjectBuilder]:
    """Give a builder in an environment with the project's own build tools."""
    from build import BuildException, FailedProcessError, ProjectBuilder
    from build.env import DefaultIsolatedEnv

    installer: Literal["pip", "uv"] = "uv" if importlib.util.find_spec("uv") else "pip"
    entered = False
    try:
        with DefaultIsolatedEnv(installer=installer) as env:
            builder = ProjectBuilder.from_isolated_env(env, here.source_dir, runner=_run)
            env.install(builder.build_system_requires)
            with _told_as_build_error(root):
                env.install(builder.get_requires_for_build(distribution))
            entered = True
            yield builder
    except (subprocess.SubprocessError, FailedProcessError, BuildException, OSError) as error:
        if entered:
            raise
        raise InvalidTrainerError(
            f"The trainer in {root} needs {', '.join(missing)} to be built, which"
            f" {'is' if len(missing) == 1 else 'are'} not installed on this worker and could not be"
            " fetched. Install it beside Airflow, let the worker reach a package registry, or build"
            f" the archive elsewhere and give it in packages=[...].{_said(error)}"
        ) from error


@contextmanager
def _told_as_build_error(root: Path) -> Iterator[None]:
    from build import BuildBackendException

    try:
        yield
    except BuildBackendException as error:
        said = _said(error.exception)
        hint = ""
        if re.search(
            r"setuptools[_-]scm|hatch-vcs|versioneer|dulwich|unable to detect version", said
        ):
            hint = (
                " Its version seems to come from version control, which isn't part of the copy that"
                " is built: state a version (or a fallback version) in the project's file."
            )
        raise InvalidTrainerError(
            f"The trainer in {root} can't be built: {error}.{hint} Try `aiptraining package FOLDER`"
            f" there.{said}"
        ) from error


def _said(error: Exception) -> str:
    """Return the last lines of what a failed command printed."""
    output = getattr(error, "output", None) or getattr(error, "stderr", None) or b""
    text = output.decode("utf-8", "replace") if isinstance(output, bytes) else str(output)
    lines = [line for line in text.splitlines() if line.strip()][-_OUTPUT_LINES:]
    return "".join(f"\n  {line}" for line in lines)


def _run(
    cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None
) -> None:
    """Run one hook of a build backend, quietly, and end all that it started if it is given up."""
    environ = {
        **os.environ,
        **(extra_environ or {}),
        "SOURCE_DATE_EPOCH": str(SOURCE_DATE),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TZ": "UTC",
    }
    # To a file: a process left behind by the build could hold a pipe open for ever.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            cmd,
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o022,  # modes in archives must not depend on the worker's
        )
        try:
            code = process.wait(BUILD_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            code, reason = -signal.SIGKILL, f"\nGiven up after {error.timeout:g} s."
        else:
            reason = ""
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code != 0:
            output.seek(0)
            raise subprocess.CalledProcessError(code, cmd, output.read() + reason.encode())
