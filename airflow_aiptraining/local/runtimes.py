"""What a job's ``runtimeVersion`` and ``pythonVersion`` mean here.

The real service had an image for each runtime version; here a table says what is installed before
the trainer's packages, and with which interpreter.  ``runtimes.toml`` is the package's own table
and describes the form; ``aiptraining serve --runtimes FILE`` lays another one over it.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from airflow_aiptraining.exceptions import AIPTrainingError
from airflow_aiptraining.local.environments import Base, Package
from airflow_aiptraining.local.interpreters import OWN, Interpreter, find, inspect
from airflow_aiptraining.local.package_imports import imported

DEFAULT_TABLE = Path(__file__).with_name("runtimes.toml")

_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_VERSION = re.compile(r"\d+\.\d+")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
# The Pythons of the images, which runtimes of the package's own table have; the rest is for others.
_PYTHONS = ("2.7", "3.5", "3.7")


class RuntimeTableError(AIPTrainingError):
    """The table can't be used; the text names the file and the key, or the line."""


@dataclass(frozen=True)
class Runtime:
    """One runtime version.

    :param requirements: what is installed before the packages; None: what they import.
    :param python: its interpreter; None: what ``pythonVersion`` asks for.
    :param file: the table that it is in.
    """

    version: str
    requirements: tuple[str, ...] | None
    python: Interpreter | None
    file: Path

    @property
    def key(self) -> str:
        """Its key in the table."""
        return f'runtimes."{self.version}"'


@dataclass(frozen=True)
class Table:
    """What one file says; an ``on_import`` that it doesn't have is None."""

    file: Path
    default: str
    runtimes: Mapping[str, Runtime]
    on_import: Mapping[str, tuple[str, ...]] | None


@dataclass(frozen=True)
class Choice:
    """What one job runs on.

    :param notes: (text, severity) for the job's log.
    """

    runtime: Runtime
    python: Interpreter
    on_import: Mapping[str, tuple[str, ...]]
    on_import_file: Path
    notes: tuple[tuple[str, str], ...]

    def base(self, packages: Sequence[Package]) -> Base:
        """Return what the environment of these packages has beside them; reads their sources."""
        runtime, modules = self.runtime, tuple(self.on_import)
        found: set[str] = set()
        if runtime.requirements is None and modules:
            found.update(*(imported(package.path, modules) for package in packages))
        return Base(
            python=self.python,
            requirements=runtime.requirements or (),
            on_import=tuple((name, self.on_import[name]) for name in sorted(found)),
            requirements_origin=f"{runtime.file}, {runtime.key}.requirements",
            on_import_origin=str(self.on_import_file),
        )


class Runtimes:
    """The runtime versions of one service.

    :param file: a table that is laid over the package's own.
    :raises RuntimeTableError: it can't be used.
    """

    def __init__(self, file: Path | None = None) -> None:
        shipped = _read(DEFAULT_TABLE)
        own = _read(file) if file else None
        self._runtimes = {**shipped.runtimes, **(own.runtimes if own else {})}
        self._default = own.default if own and own.default else shipped.default
        if self._default not in self._runtimes:
            raise RuntimeTableError(
                f"{file}: default: {self._default!r} is no runtime of this table or of the "
                f"package's own ({', '.join(self._runtimes)})."
            )
        self._on_import = shipped.on_import or {}
        self._on_import_file = DEFAULT_TABLE
        if own and own.on_import is not None:
            self._on_import, self._on_import_file = own.on_import, own.file

    def problem(self, runtime_version: object, python_version: object) -> str:
        """Return why a job with these two can't be created, in the real service's words.

        :param runtime_version: as the client sent it; empty: it leaves the runtime to the service.
        :return: empty for a pair that is here, and for what is no version at all.
        """
        # It loads the models; the first create has done so anyway.
        from airflow_aiptraining.core.job_rules import pair_problem, read_version

        runtime, python = (text or "" for text in (runtime_version, python_version))
        if not isinstance(runtime, str) or not isinstance(python, str) or not runtime:
            return ""
        asked = read_version(runtime)
        asked_python = read_version(python) if python else None
        if asked is None or (python and asked_python is None):
            return ""
        why = pair_problem(asked, asked_python) if asked_python else ""
        known = self._runtimes.get(runtime)
        if known is None:
            why = (
                f"This service has the runtime versions {', '.join(self._runtimes)}; a file for "
                "'aiptraining serve --runtimes' may add others."
            )
        elif why:
            why += "."
        elif asked_python and known.file == DEFAULT_TABLE:
            short = f"{asked_python[0]}.{asked_python[1]}"
            if short not in _PYTHONS:
                had = [each for each in _PYTHONS if not pair_problem(asked, _numbers(each))]
                why = (
                    f"Runtime {runtime} had Python {' and '.join(had)}; leave the Python "
                    "version out to run on the service's own. A runtime in a file for 'aiptraining "
                    "serve --runtimes' takes any."
                )
        if not why:
            return ""
        return (
            f"The specified runtime version '{runtime}' with the Python version '{python}' is not "
            f"supported or is deprecated. {why}"
        )

    def choose(self, training_input: Mapping[str, Any]) -> Choice:
        """Return what a job runs on; may run interpreters to ask them their version."""
        asked = training_input.get("runtimeVersion") or ""
        notes: list[tuple[str, str]] = []
        runtime = self._runtimes.get(asked or self._default)
        if runtime is None:
            # The job was created when the service had another table.
            runtime = self._runtimes[self._default]
            text = f"runtimeVersion {asked} isn't in this service's table any more: the default"
            notes.append((f"{text}, {runtime.version}, is used.", "W"))
        elif not asked:
            notes.append(
                (f"No runtimeVersion is given: the default, {runtime.version}, is used.", "I")
            )
        notes.append((self._what_it_has(runtime), "I"))
        python, note = _python(runtime, training_input.get("pythonVersion") or "")
        return Choice(runtime, python, self._on_import, self._on_import_file, (*notes, note))

    def _what_it_has(self, runtime: Runtime) -> str:
        start = f"Runtime {runtime.version}, as {runtime.file.name} has it"
        if runtime.requirements:
            return f"{start}: {', '.join(runtime.requirements)} and the packages of the job."
        if runtime.requirements is None and self._on_import:
            return (
                f"{start}: the packages of the job with what they require, and these if they "
                f"import them: {', '.join(self._on_import)}."
            )
        return f"{start}: nothing but the packages of the job with what they require."


def advice(stderr: Sequence[str]) -> str:
    """Return what to do about a module that a trainer didn't find, if that ended it."""
    last = next((line for line in reversed(stderr) if line.strip()), "")
    match = _NO_MODULE.match(last.strip())
    if match is None:
        return ""
    return (
        f"Nothing that was installed has the module {match[1]}: name its package in "
        "install_requires of the trainer, or in the requirements of the runtime in a file for "
        "'aiptraining serve --runtimes'.\n\n"
    )


def _python(runtime: Runtime, asked: str) -> tuple[Interpreter, tuple[str, str]]:
    """Return the interpreter and what to say about it."""
    short = ".".join(asked.split(".")[:2])
    if runtime.python:
        told = f"Python {runtime.python.version}, {runtime.python.path}, as {runtime.file.name} has"
        if asked and short != runtime.python.version:
            return runtime.python, (f"Not pythonVersion {asked}: the job runs on {told} it.", "W")
        return runtime.python, (f"The job runs on {told} it.", "I")
    if not asked:
        return OWN, (
            f"No pythonVersion is given: the job runs on the service's own, {OWN.version}.",
            "I",
        )
    if found := find(asked):
        return found, (f"The job runs on Python {found.version}, {found.path}.", "I")
    return OWN, (
        f"pythonVersion {asked} isn't on this machine: the job runs on the service's own, "
        f"{OWN.version}.",
        "W",
    )


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)


# --- reading a table


def _read(file: Path) -> Table:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RuntimeTableError(
            f"The table of runtimes can't be read: {file}: {error.strerror}."
        ) from error
    except ValueError as error:
        # It names line and column.
        raise RuntimeTableError(f"{file} is not a TOML file: {error}.") from error
    broken = functools.partial(_broken, file)
    if unknown := sorted(values.keys() - {"default", "runtimes", "on_import"}):
        raise broken(unknown[0], "unknown; a table has default, runtimes and on_import")
    default = values.get("default", "")
    if not isinstance(default, str):
        raise broken("default", f"{default!r} is not a text; write it in quotes")
    section = values.get("runtimes", {})
    if not isinstance(section, dict):
        raise broken("runtimes", 'it holds sections, such as [runtimes."2.11"]')
    runtimes = {}
    for version, entry in section.items():
        if not _VERSION.fullmatch(version):
            cure = 'not a runtime version; it is written [runtimes."2.11"], with quotes'
            raise broken(f"runtimes.{version}", cure)
        runtimes[version] = _runtime(file, version, entry)
    modules = values.get("on_import")
    return Table(file, default, runtimes, None if modules is None else _on_import(file, modules))


def _runtime(file: Path, version: str, entry: object) -> Runtime:
    key = f'runtimes."{version}"'
    if not isinstance(entry, dict):
        raise _broken(file, key, "it is a section, with requirements and python in it")
    if unknown := sorted(entry.keys() - {"requirements", "python"}):
        raise _broken(file, f"{key}.{unknown[0]}", "unknown; a runtime has requirements and python")
    requirements = None
    if "requirements" in entry:
        requirements = _requirements(file, f"{key}.requirements", entry["requirements"])
    python = None
    if "python" in entry:
        command = entry["python"]
        python = inspect(command) if isinstance(command, str) else None
        if python is None:
            raise _broken(
                file,
                f"{key}.python",
                f"{command!r} is no Python 3.6 or later that runs here; give its path, or a name "
                "that is on PATH",
            )
    return Runtime(version, requirements, python, file)


def _on_import(file: Path, section: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(section, dict):
        raise _broken(file, "on_import", "it is a section of modules")
    found = {}
    for module, value in section.items():
        key = f'on_import."{module}"'
        if not _MODULE.fullmatch(module):
            raise _broken(file, key, "not the name of a module; one with dots is put in quotes")
        found[module] = _requirements(file, key, [value] if isinstance(value, str) else value)
    return found


def _requirements(file: Path, key: str, values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise _broken(file, key, 'a list of texts is expected, such as ["scikit-learn==1.5.*"]')
    for index, value in enumerate(values):
        try:
            Requirement(value)
        except InvalidRequirement as error:
            reason = str(error).splitlines()[0]
            raise _broken(
                file, f"{key}[{index}]", f"{value!r} is not a requirement: {reason}"
            ) from error
    return tuple(values)


def _broken(file: Path, key: str, what: str) -> RuntimeTableError:
    return RuntimeTableError(f"{file}: {key}: {what}.")
