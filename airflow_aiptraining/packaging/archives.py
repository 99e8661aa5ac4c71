"""Look inside a trainer's archive before it goes anywhere: readable, harmless, installable.

The service finds out minutes later, on machines that are paid for, what is found here in
milliseconds: a half-copied file, a tar that writes outside its folder, a module that isn't inside.
Nothing is ever unpacked to disk.
"""

from __future__ import annotations

import difflib
import gzip
import keyword
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from airflow_aiptraining.exceptions import InvalidTrainerError

ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".zip", ".whl")
"""What pip installs on every service, and what can be inspected here."""

MAX_UNPACKED_BYTES = 4 * 1024**3
MAX_MEMBERS = 100_000
MAX_RATIO = 100
"""Source text packs to a quarter or so; all above 100 is made to hurt (or is a file of zeros)."""
RATIO_FREE_BYTES = 64 * 1024**2
"""So much may be unpacked at any ratio: it can't hurt."""

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")
# PEP 427: name-version(-build)?-python-abi-platform.whl
_WHEEL_NAME = re.compile(r"[^-]+-[^-]+(-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl")
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,  # zipfile: a password is needed
    NotImplementedError,  # zipfile: a compression that Python doesn't know
)


@dataclass(frozen=True)
class ArchiveContents:
    """What an archive holds.

    :param name: the archive's file name.
    :param files: paths of the regular files, with ``/``; for a source archive without its one
        leading folder (``trainer-0.1/``).
    :param modules: what ``python -m`` can run from it. For source archives this is what their
        layout suggests: folders above the packages (``src/``) are seen through.
    :param unpacked_bytes: size of the files.
    """

    name: str
    files: frozenset[str]
    modules: frozenset[str]
    unpacked_bytes: int


@dataclass(frozen=True)
class _Member:
    path: str
    is_file: bool
    size: int


def inspect_archive(path: Path) -> ArchiveContents:
    """Read a whole archive without unpacking it and say what is inside.

    :param path: a ``.tar.gz``, ``.tgz``, ``.zip`` (source archives) or ``.whl``.
    :raises InvalidTrainerError: no such file, another kind of file, damaged, a bomb, a path or
        link that leaves the archive, or nothing that pip could install.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "doesn't exist"
        raise InvalidTrainerError(
            f"Package {path} {what}. Name an archive ({', '.join(ARCHIVE_SUFFIXES)}), or give a"
            " source folder as package_path to have it built."
        )
    check_file_name(path.name)
    is_tar = path.name.endswith((".tar.gz", ".tgz"))
    with _told_as_unreadable(path):
        members = list(_tar_members(path) if is_tar else _zip_members(path))
    files = frozenset(member.path for member in members if member.is_file)
    if path.name.endswith(".whl"):
        _check_wheel(path, files)
        modules = runnable_modules(files)
    else:
        files = _without_leading_folder(files)
        if not files & {"setup.py", "pyproject.toml"}:
            raise InvalidTrainerError(
                f"Package {path} holds neither a setup.py nor a pyproject.toml at its top, so pip"
                " can't install it. Build it with `aiptraining package FOLDER`, or give the source"
                " folder as package_path."
            )
        modules = runnable_modules(_seen_through_source_folders(files))
    return ArchiveContents(path.name, files, modules, sum(member.size for member in members))


def check_file_name(name: str) -> None:
    """Check that a name is an archive's and survives an object name, a shell and pip.

    :raises InvalidTrainerError: it is not, or does not.
    """
    if not name.endswith(ARCHIVE_SUFFIXES):
        raise InvalidTrainerError(
            f"Package {name!r} is not one of {', '.join(ARCHIVE_SUFFIXES)}. Build one with"
            " `aiptraining package FOLDER`, or give the source folder as package_path."
        )
    if not _FILE_NAME.fullmatch(name):
        raise InvalidTrainerError(
            f"Package name {name!r} has characters other than letters, digits and . _ + ! -."
            " Rename the file."
        )
    if name.endswith(".whl") and not _WHEEL_NAME.fullmatch(name):
        raise InvalidTrainerError(
            f"Package {name!r} isn't named as a wheel must be (name-version-python-abi-platform.whl"
            "): pip would refuse it. Keep the name that its build gave it."
        )


def check_module_name(module_name: str) -> None:
    """Check that a name can stand behind ``python -m``.

    :raises InvalidTrainerError: it can't; the error says what was probably meant.
    """
    parts = module_name.split(".")
    if all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        return
    guess = module_name.removesuffix(".py").strip("./").replace("/", ".")
    meant = f" Did you mean {guess!r}?" if _is_module(guess) else ""
    raise InvalidTrainerError(
        f"module_name {module_name!r} is not a module's name: names joined by dots, as in"
        f" 'trainer.task'.{meant}"
    )


def check_module(module_name: str, modules: Collection[str], where: str) -> None:
    """Check that ``python -m module_name`` would find something to run.

    :param modules: the runnable modules there are.
    :param where: what holds them, for the error: an archive's or folder's name.
    :raises InvalidTrainerError: it is a package without ``__main__.py``, or isn't there.

    The service itself finds out on the training machines only.
    """
    check_module_name(module_name)
    if module_name in modules:
        return
    inside = sorted(module for module in modules if module.startswith(module_name + "."))
    if inside:
        raise InvalidTrainerError(
            f"module_name {module_name!r} is a package in {where}, and has no __main__.py to run."
            f" Name a module of it (such as {inside[0]!r}), or add __main__.py."
        )
    near = difflib.get_close_matches(module_name, modules, n=1, cutoff=0.6)
    if near:
        cure = f"Did you mean {near[0]!r}?"
    else:
        some = ", ".join(sorted(modules)[:8])
        cure = f"It holds {some}." if some else "It holds no Python module at all."
    raise InvalidTrainerError(f"module_name {module_name!r} is not in {where}. {cure}")


def runnable_modules(files: Iterable[str]) -> frozenset[str]:
    """Return what ``python -m`` can run, given the files as they lie on ``sys.path``.

    :param files: paths with ``/``, as ``trainer/task.py``.
    """
    modules = set()
    for file in files:
        path = PurePosixPath(file)
        if path.suffix not in (".py", ".pyc") or path.stem == "__init__":
            continue
        parts = path.parent.parts if path.stem == "__main__" else (*path.parent.parts, path.stem)
        name = ".".join(parts)
        if _is_module(name):
            modules.add(name)
    return frozenset(modules)


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _without_leading_folder(files: frozenset[str]) -> frozenset[str]:
    tops = {file.split("/", 1)[0] for file in files}
    if len(tops) != 1 or any("/" not in file for file in files):
        return files
    return frozenset(file.split("/", 1)[1] for file in files)


def _seen_through_source_folders(files: frozenset[str]) -> Iterator[str]:
    """Yield each path also as it would be installed from ``src/``, ``lib/python/`` and the like.

    Which folder a project calls its source root only its build knows; a folder without
    ``__init__.py`` may be one.
    """
    for file in files:
        yield file
        parts = file.split("/")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) + "/__init__.py" in files:
                break
            yield "/".join(parts[depth:])


def _check_wheel(path: Path, files: frozenset[str]) -> None:
    infos = {file.split("/")[0] for file in files if re.fullmatch(r"[^/]+\.dist-info/.+", file)}
    missing = {"METADATA", "WHEEL", "RECORD"} - {
        file.split("/")[1] for file in files if file.split("/")[0] in infos
    }
    if len(infos) != 1 or missing:
        raise InvalidTrainerError(
            f"Package {path} is not a whole wheel: it needs one .dist-info folder with METADATA,"
            " WHEEL and RECORD. Build it again, for example with `aiptraining package FOLDER`."
        )


@contextmanager
def _told_as_unreadable(path: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise InvalidTrainerError(
            f"Package {path} can't be read by this worker's user: {error.strerror}."
        ) from error
    except _BROKEN as error:
        raise InvalidTrainerError(
            f"Package {path} is damaged or not what its name says: {error}. Build or copy it again."
        ) from error


class _BoundedReader:
    """Reads a gzip file and stops at a bomb, whoever reads and however much at once.

    tarfile reads extended headers into memory at the length that the archive states, so that
    looking at members' sizes would come too late.
    """

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream = stream
        self._path = path
        self._packed = path.stat().st_size
        self._unpacked = 0

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._unpacked += len(data)
        _check_not_a_bomb(self._path, self._packed, self._unpacked)
        return data


def _check_not_a_bomb(path: Path, packed: int, unpacked: int, members: int = 0) -> None:
    too_dense = unpacked > max(RATIO_FREE_BYTES, MAX_RATIO * packed)
    if unpacked > MAX_UNPACKED_BYTES or too_dense or members > MAX_MEMBERS:
        raise InvalidTrainerError(
            f"Package {path} unpacks to more than a trainer needs ({packed:,} bytes to more than"
            f" {unpacked:,}, {members:,} members so far): refused as an archive bomb. Keep data in"
            " a bucket and read it from there."
        )


def _tar_members(path: Path) -> Iterator[_Member]:
    with gzip.open(path, "rb") as unzipped:
        reader = _BoundedReader(unzipped, path)  # type: ignore[arg-type]
        # A stream ("r|"): tarfile never seeks, so every byte passes the reader once.
        with tarfile.open(fileobj=reader, mode="r|") as tar:  # type: ignore[call-overload]
            packed = path.stat().st_size
            members = unpacked = 0
            for member in tar:
                members += 1
                unpacked += member.size
                _check_not_a_bomb(path, packed, unpacked, members)
                _check_member_path(path, member.name)
                if member.issym() or member.islnk():
                    _check_link(path, member)
                elif not (member.isfile() or member.isdir()):
                    raise InvalidTrainerError(
                        f"Package {path} holds {member.name!r}, which is a device or pipe. Build"
                        " it again from plain files."
                    )
                # A link counts as the file that it stands for.
                yield _Member(member.name.removeprefix("./"), not member.isdir(), member.size)
        if members == 0:
            raise tarfile.ReadError("it is empty")
        # To the end of the file, so that gzip compares its checksum.
        while reader.read(1024 * 1024):
            pass


def _check_link(path: Path, member: tarfile.TarInfo) -> None:
    # A symbolic link starts at its own folder, a hard link at the archive's top.
    start = PurePosixPath(member.name).parent if member.issym() else PurePosixPath()
    depth = 0
    for part in (start / member.linkname).parts:
        depth += -1 if part == ".." else 1
        if part.startswith("/") or depth < 0:
            raise InvalidTrainerError(
                f"Package {path} holds the link {member.name!r} to {member.linkname!r}, outside"
                " the archive. Build it again with the file itself."
            )


def _zip_members(path: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        unpacked = sum(info.file_size for info in infos)
        _check_not_a_bomb(path, path.stat().st_size, unpacked, len(infos))
        for info in infos:
            _check_member_path(path, info.orig_filename)
            if stat.S_ISLNK(info.external_attr >> 16):
                raise InvalidTrainerError(
                    f"Package {path} holds {info.filename!r} as a symbolic link, which pip doesn't"
                    " make from a zip. Build it again with the file itself."
                )
        damaged = archive.testzip()  # reads everything: checksums
        if damaged is not None:
            raise zipfile.BadZipFile(f"the checksum of {damaged!r} is wrong")
        for info in infos:
            yield _Member(info.filename.removeprefix("./"), not info.is_dir(), info.file_size)


def _check_member_path(path: Path, name: str) -> None:
    parts = name.split("/")
    leaves = name.startswith("/") or ".." in parts or "\\" in name or re.match("[A-Za-z]:", name)
    if not name or leaves or not name.isprintable():
        raise InvalidTrainerError(
            f"Package {path} holds the path {name!r}, which leaves the archive or isn't legal"
            " everywhere. Don't use this file; build the package again from its sources."
        )
