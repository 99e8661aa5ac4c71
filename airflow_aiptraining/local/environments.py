"""Python environments of jobs, made by uv and kept by content.

An environment's name is a hash of the packages' bytes, the interpreter and what its runtime adds,
so a job whose packages were seen before starts at once.  It is built under another name and renamed
when it is complete: a crash leaves nothing that looks finished.  Jobs that need the same one at
the same time build it once; it goes on as long as one of them waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import uv
from packaging.requirements import Requirement

from airflow_aiptraining.local.interpreters import OWN, Interpreter
from airflow_aiptraining.local.processes import kill_marked
from airflow_aiptraining.local.replica_env import PASSED_ON

INSTALL_MARKER = "AIPTRAINING_INSTALL"
"""Variable by which the installers of one data folder are found again."""

INSTALL_SECONDS = 900.0
"""An install that takes longer is taken for hanging."""

_PLAIN = ("--color", "never", "--no-progress", "--no-python-downloads")
_TAIL_BYTES = 16_384
_TAIL_LINES = 25
# What uv says when it can't get the tools for a build: no network, or an index without them.
_NO_BUILD_TOOLS = "Failed to resolve requirements from"
# The installer runs setup.py: nobody's credentials are its business, so what passes is listed.
# A proxy passes with its password, an index with its own: uv reaches no registry without them.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_ALLOWED = frozenset(
    {
        *("PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *PASSED_ON,
        *_PROXIES,
        *(name.lower() for name in _PROXIES),
    }
)
_ALLOWED_PREFIXES = ("LC_", "PIP_", "UV_")
_UPLOADING = "UV_PUBLISH_"
# uv doesn't read pip's variables; whoever set them meant every installer.
_PIP_TO_UV = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
}


class InstallError(Exception):
    """An environment couldn't be made.

    :param output: the last lines that the installer wrote.
    """

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


@dataclass(frozen=True)
class Package:
    """An archive to install.

    :param uri: where it came from.
    :param path: its bytes, under its own file name, in a folder named by their hash.
    :param sha256: hex digest of the bytes.
    """

    uri: str
    path: Path
    sha256: str


@dataclass(frozen=True)
class Base:
    """What an environment has beside a job's packages.

    :param python: the interpreter that it is made with.
    :param requirements: what is installed before the packages.
    :param on_import: (module, its requirements): installed where the packages don't bring it.
    :param requirements_origin: where the requirements are written, for errors.
    :param on_import_origin: where the modules are.
    """

    python: Interpreter = OWN
    requirements: tuple[str, ...] = ()
    on_import: tuple[tuple[str, tuple[str, ...]], ...] = ()
    requirements_origin: str = ""
    on_import_origin: str = ""

    @property
    def further(self) -> list[str]:
        """What is installed beside the packages, for people to read."""
        missing = [f"{module}, where nothing requires it" for module, _ in self.on_import]
        return [*self.requirements, *missing]


@dataclass
class _Build:
    task: asyncio.Task[None]
    waiters: int = 0


class Environments:
    """All environments of one data folder.

    :param root: their folder; made if missing.
    :param timeout: seconds that an install may take.
    """

    def __init__(self, root: Path, *, timeout: float = INSTALL_SECONDS) -> None:
        self._root = root
        self._timeout = timeout
        self._builds: dict[str, _Build] = {}
        root.mkdir(parents=True, exist_ok=True)

    def clear_unfinished(self) -> None:
        """End installers that an earlier process of the service left, and remove their work."""
        left = list(self._root.glob(".*"))
        if left:
            kill_marked(INSTALL_MARKER, str(self._root))
            for folder in left:
                shutil.rmtree(folder, ignore_errors=True)

    def key(self, packages: Sequence[Package], base: Base) -> str:
        """Return the name of the environment for these packages, in this order."""
        parts: list[object] = [base.python.path, base.python.build]
        parts += [[requirement, _stamp(requirement)] for requirement in base.requirements]
        parts += base.on_import
        parts += [f"{package.sha256} {package.path.name}" for package in packages]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def python(self, key: str) -> Path | None:
        """Return the interpreter of a complete environment, None where there is none."""
        python = self._root / key / "bin" / "python"
        return python if python.exists() else None

    async def ensure(self, key: str, packages: Sequence[Package], base: Base) -> Path:
        """Return the interpreter of environment *key*; make the environment if it isn't there.

        Cancelling the caller ends the build if nobody else waits for it.

        :raises InstallError: it can't be made.
        """
        if python := self.python(key):
            return python
        build = self._builds.get(key)
        if build is None:
            build = _Build(asyncio.create_task(self._build(key, packages, base)))
            self._builds[key] = build
            build.task.add_done_callback(lambda _: self._forget(key, build))
        build.waiters += 1
        try:
            await asyncio.shield(build.task)
        finally:
            build.waiters -= 1
            if not build.waiters and not build.task.done():
                self._forget(key, build)
                build.task.cancel()
                await asyncio.wait([build.task])
        python = self.python(key)
        assert python is not None
        return python

    def _forget(self, key: str, build: _Build) -> None:
        if self._builds.get(key) is build:
            del self._builds[key]

    async def _build(self, key: str, packages: Sequence[Package], base: Base) -> None:
        work = self._root / f".{key}.{uuid.uuid4().hex}"
        work.mkdir()
        try:
            async with asyncio.timeout(self._timeout):
                await self._fill(work, packages, base)
            # Another build of the same key may have been abandoned and finished all the same.
            with contextlib.suppress(OSError):
                (work / "environment").rename(self._root / key)
        except TimeoutError:
            raise InstallError(
                f"Installing the packages took longer than {self._timeout:.0f} s and was ended.",
                _tail(work / "output"),
            ) from None
        finally:
            shutil.rmtree(work, ignore_errors=True)

    async def _fill(self, work: Path, packages: Sequence[Package], base: Base) -> None:
        (work / "gcloud").mkdir()
        (work / "home").mkdir()
        environment = work / "environment"
        # Relocatable, as it is renamed when it is complete.
        venv = ["venv", *_PLAIN, "--relocatable", "--python", base.python.path, str(environment)]
        if await self._uv(work, venv):
            raise InstallError("No environment could be made.", _tail(work / "output"))
        if base.requirements and not await self._install(work, base.requirements):
            raise InstallError(
                f"What its runtime has can't be installed; it is in {base.requirements_origin}.",
                _tail(work / "output"),
            )
        archives = [str(package.path) for package in packages]
        if not await self._install(work, archives):
            raise InstallError("The packages can't be installed.", _tail(work / "output"))
        missing = {
            module: requirements
            for module, requirements in base.on_import
            if not _has_module(environment, module)
        }
        if missing:
            # Together with the packages, so that what they require still holds.
            further = [each for requirements in missing.values() for each in requirements]
            if not await self._install(work, [*archives, *further]):
                keys = ", ".join(f'on_import."{module}"' for module in missing)
                raise InstallError(
                    f"The packages import {', '.join(missing)} without requiring it, and it can't "
                    f"be installed; what is installed then is in {base.on_import_origin}, {keys}.",
                    _tail(work / "output"),
                )

    async def _install(self, work: Path, what: Sequence[str]) -> bool:
        """Install requirements or archives; tell whether that succeeded."""
        python = str(work / "environment" / "bin" / "python")
        install = ["pip", "install", *_PLAIN, "--python", python]
        if not await self._uv(work, [*install, *what]):
            return True
        if _NO_BUILD_TOOLS not in (work / "output").read_text(encoding="utf-8", errors="replace"):
            return False
        # Most trainers need nothing but setuptools to build, and that is installed here.
        tools = work / "tools"
        if not tools.exists():
            _link_build_tools(tools)
        isolated = [*install, "--no-build-isolation", *what]
        return not await self._uv(work, isolated, {"PYTHONPATH": str(tools)})

    async def _uv(
        self, work: Path, arguments: Sequence[str], further: Mapping[str, str] | None = None
    ) -> int:
        """Run uv to its end, its output in ``work/output``; cancelled, it is killed.

        :return: its exit code.
        """
        env = _installer_environment(os.environ) | dict(further or {})
        env |= {
            INSTALL_MARKER: str(self._root),
            "HOME": str(work / "home"),
            "CLOUDSDK_CONFIG": str(work / "gcloud"),
            "NO_GCE_CHECK": "true",
        }
        with (work / "output").open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                uv.find_uv_bin(),
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                cwd=work,
                env=env,
                start_new_session=True,
            )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def fetch(uri: str, source: Path, cache: Path) -> Package:
    """Copy an archive's bytes to the folder named by their hash, under the file name of its URI.

    uv knows a path that it has built before, so the same bytes aren't built twice.

    :param source: file with the bytes; its own name means nothing.
    """
    digest = hashlib.sha256()
    with source.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    sha256 = digest.hexdigest()
    path = cache / sha256 / uri.rpartition("/")[2]
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{uuid.uuid4().hex}")
        shutil.copyfile(source, temporary)
        temporary.rename(path)
    return Package(uri, path, sha256)


def _installer_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return what an installer needs of *base*: index settings are kept, credentials aren't.

    HOME isn't in it; uv's own files below the real one are named.
    """
    env = {
        name: value
        for name, value in base.items()
        if name in _ALLOWED
        or (name.startswith(_ALLOWED_PREFIXES) and not name.startswith(_UPLOADING))
    }
    for pip, name in _PIP_TO_UV.items():
        if base.get(pip):
            env.setdefault(name, base[pip])
    # Not XDG_*_HOME itself: libraries look there for tokens.
    if not env.get("UV_CACHE_DIR"):
        env["UV_CACHE_DIR"] = str(_user_folder(base, "XDG_CACHE_HOME", ".cache") / "uv")
    settings = _user_folder(base, "XDG_CONFIG_HOME", ".config") / "uv" / "uv.toml"
    if not {"UV_CONFIG_FILE", "UV_NO_CONFIG"} & env.keys() and os.access(settings, os.R_OK):
        env["UV_CONFIG_FILE"] = str(settings)
    return env


def _user_folder(base: Mapping[str, str], variable: str, below_home: str) -> Path:
    """Return one of the user's folders as uv finds it.

    Source: XDG Base Directory Specification, which has relative paths ignored.
    """
    named = Path(base.get(variable, ""))
    return named if named.is_absolute() else Path(base.get("HOME") or Path.home()) / below_home


def _stamp(requirement: str) -> list[int]:
    """Return what changes when the file does that a requirement names, if it names one."""
    address = urlsplit(Requirement(requirement).url or "")
    if address.scheme == "file":
        with contextlib.suppress(OSError, ValueError):
            found = Path(unquote(address.path)).stat()
            return [found.st_size, found.st_mtime_ns]
    return []


def _has_module(environment: Path, module: str) -> bool:
    path = module.replace(".", "/")
    return any(
        (site / path).is_dir() or any((site / path).parent.glob(f"{Path(path).name}.*"))
        for site in environment.glob("lib*/python*/site-packages")
    )


def _link_build_tools(folder: Path) -> Path:
    """Return a folder in which setuptools, and nothing else of this environment, can be found."""
    folder.mkdir()
    spec = importlib.util.find_spec("setuptools")
    if spec and spec.origin:
        site = Path(spec.origin).parent.parent
        names = ("setuptools", "_distutils_hack", "pkg_resources", "setuptools-*", "wheel*")
        for pattern in names:
            for found in site.glob(pattern):
                (folder / found.name).symlink_to(found)
    return folder


def _tail(path: Path) -> str:
    """Return the last lines of a file."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
        return "\n".join(text.strip().splitlines()[-_TAIL_LINES:])
    return ""
