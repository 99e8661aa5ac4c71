"""A trainer's source tree: what belongs to it, a private copy of it, and its identity.

The identity (``tree_hash``) is that of the copy that gets built, never of files that may have
changed in between. It covers names, the executable bit, bytes, and how the tree is built, so that
equal trees on any worker share one object in the staging bucket.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from airflow_aiptraining.exceptions import InvalidTrainerError
from airflow_aiptraining.packaging.trainer_project import ProjectKind, Trainer

ArchiveFormat = Literal["auto", "wheel", "sdist"]
"""``auto``: a wheel if the project is pure Python, else a source archive (see ``build.py``)."""

TREE_FORMAT = 1
"""Part of every identity. Raise it when the same tree would be built into something else."""

GENERATED_VERSION = "0.0.0"
"""Version of a trainer without a project file. Source: gcloud 528, measured."""

SOURCE_DATE = 1_580_601_600
"""2020-02-02, the time of every file in an archive. A zip can't hold times before 1980."""

MAX_TREE_BYTES = 200 * 1024**2
MAX_TREE_FILES = 20_000
"""Beyond these a folder is data or an environment, not a trainer."""
_STOP_COUNTING = 10 * MAX_TREE_FILES

_ATTEMPTS = 3

EXCLUDED_FOLDERS = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".bzr",
        "CVS",
        "__pycache__",
        ".venv",
        ".tox",
        ".nox",
        ".eggs",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".hypothesis",
        ".ipynb_checkpoints",
        ".idea",
        ".vscode",
        "node_modules",
    }
)
"""Folders that no trainer runs from; they change without the trainer changing."""

EXCLUDED_FILES = frozenset(
    {
        ".DS_Store",
        ".env",  # passwords of whoever develops the trainer; not for a bucket
    }
)
EXCLUDED_SUFFIXES = (".pyc", ".pyo", ".egg-info", ".swp")
EXCLUDED_PREFIXES = ("..",)  # Kubernetes' own folders in a mounted ConfigMap: ..data, ..2024_05_01
EXCLUDED_AT_PROJECT_ROOT = frozenset({"build", "dist"})
"""Output of earlier builds. Deeper down, these are ordinary names of packages."""


@dataclass(frozen=True)
class Snapshot:
    """A private copy of a trainer's tree.

    :param folder: the project's root in the copy; may be written to.
    :param files: paths of the copied files below ``folder``, with ``/``, sorted.
    :param tree_hash: sha256, hex, of names, modes, bytes and build inputs.
    """

    trainer: Trainer
    folder: Path
    files: tuple[str, ...]
    tree_hash: str


@dataclass(frozen=True)
class _Entry:
    path: str
    real: Path
    executable: bool
    size: int
    stamp: tuple[int, int] = field(repr=False)  # mtime in ns, inode


class _ChangedError(Exception):
    """The tree was being written to."""


def take_snapshot(
    trainer: Trainer,
    into: Path,
    archive_format: ArchiveFormat = "auto",
    log: logging.Logger | None = None,
) -> Snapshot:
    """Copy a trainer's tree and identify the copy. The tree itself is only read.

    :param into: an empty folder outside the tree.
    :param archive_format: part of the identity, as it decides what is built.
    :raises InvalidTrainerError: too large; a link that leads out of the tree; a device, pipe or
        socket; a name that isn't legal everywhere; unreadable; or written to all the time.
    """
    root = trainer.root.resolve()
    if into.resolve().is_relative_to(root):
        raise InvalidTrainerError(
            f"The temporary folder {into} lies inside the trainer's tree {trainer.root}. Set TMPDIR"
            " to a folder outside it."
        )
    changed = ""
    for attempt in range(_ATTEMPTS):
        folder = into / f"copy{attempt}"
        try:
            return _copy_tree(trainer, root, folder, archive_format)
        except _ChangedError as error:
            # A deployment (git-sync, rsync) is under way: the next pass finds it finished.
            changed = str(error)
            if log is not None:
                log.info("Trainer %s changed while it was read (%s)", trainer.root, changed)
            shutil.rmtree(folder, ignore_errors=True)
    raise InvalidTrainerError(
        f"The trainer in {trainer.root} keeps changing while it is read, last {changed}. Keep logs"
        " and output out of it, or run the task again when its deployment is over."
    )


def _copy_tree(trainer: Trainer, root: Path, folder: Path, fmt: ArchiveFormat) -> Snapshot:
    entries = _scan(trainer, root)
    prefix = f"{trainer.package}/" if trainer.kind is ProjectKind.GENERATED else ""
    inputs = {
        "tree_format": TREE_FORMAT,
        "kind": trainer.kind.value,
        "archive_format": fmt,
        "version": GENERATED_VERSION if trainer.kind is ProjectKind.GENERATED else None,
    }
    identity = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode())
    for entry in entries:
        target = folder / prefix / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = _copy_file(entry, target)
        line = [prefix + entry.path, entry.executable, entry.size, digest]
        identity.update(b"\n" + json.dumps(line).encode())
    after = _scan(trainer, root)
    if after != entries:
        difference = set(after) ^ set(entries)
        raise _ChangedError(min(entry.path for entry in difference))
    files = tuple(prefix + entry.path for entry in entries)
    return Snapshot(trainer, folder, files, identity.hexdigest())


def _copy_file(entry: _Entry, target: Path) -> str:
    digest = hashlib.sha256()
    try:
        # Without O_NONBLOCK, a pipe put in the file's place would stop the task for ever.
        source = os.open(entry.real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _read_error(entry.path, error) from error
    with os.fdopen(source, "rb") as reader, target.open("xb") as writer:
        if not stat.S_ISREG(os.fstat(reader.fileno()).st_mode):
            raise _ChangedError(entry.path)
        size = 0
        # Never more than was announced: the bound on the tree's size holds for growing files too.
        while size <= entry.size and (block := reader.read(1024 * 1024)):
            digest.update(block)
            writer.write(block)
            size += len(block)
    if size != entry.size:
        raise _ChangedError(entry.path)
    target.chmod(0o755 if entry.executable else 0o644)
    os.utime(target, (SOURCE_DATE, SOURCE_DATE))
    return digest.hexdigest()


def _read_error(path: str, error: OSError) -> Exception:
    if error.errno in (errno.ENOENT, errno.ESTALE, errno.ENOTDIR):
        return _ChangedError(path)
    return InvalidTrainerError(
        f"{path!r} of the trainer can't be read: {error.strerror}. Make it readable for the"
        " worker's user, or take it out of the tree."
    )


def _scan(trainer: Trainer, root: Path) -> list[_Entry]:
    entries: list[_Entry] = []
    total = 0
    for entry in _walk(root, root, "", trainer.kind is not ProjectKind.GENERATED, (root,)):
        entries.append(entry)
        total += entry.size
        if len(entries) > _STOP_COUNTING:
            break
    if total > MAX_TREE_BYTES:
        folder, size = _heaviest([(entry.path, entry.size) for entry in entries])
        raise InvalidTrainerError(
            f"The trainer in {trainer.root} has {total:,} bytes, more than {MAX_TREE_BYTES:,}; the"
            f" most are in {folder!r} ({size:,}). Keep data and environments elsewhere: the job"
            " reads its data from a bucket."
        )
    if len(entries) > MAX_TREE_FILES:
        folder, size = _heaviest([(entry.path, 1) for entry in entries])
        raise InvalidTrainerError(
            f"The trainer in {trainer.root} has more than {MAX_TREE_FILES:,} files; the most are in"
            f" {folder!r} ({size:,}). Keep data and environments elsewhere: the job reads its data"
            " from a bucket."
        )
    return sorted(entries, key=lambda entry: entry.path)


def _heaviest(weights: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """Return the deepest folder that alone holds more than half, else the heaviest at the top."""
    by_folder: Counter[str] = Counter()
    for path, weight in weights:
        for parent in PurePosixPath(path).parents:
            by_folder[str(parent)] += weight
    half = by_folder["."] / 2
    deep = [folder for folder, weight in by_folder.items() if weight > half and folder != "."]
    if deep:
        folder = max(deep, key=lambda folder: folder.count("/"))
    else:
        tops = [folder for folder in by_folder if "/" not in folder and folder != "."]
        folder = max(tops, key=lambda folder: by_folder[folder], default=".")
    return folder, by_folder[folder]


def _walk(
    root: Path, folder: Path, prefix: str, is_project: bool, ancestors: tuple[Path, ...]
) -> Iterator[_Entry]:
    """Yield the files of a tree. Links within it are followed as if they were copies."""
    try:
        with os.scandir(folder) as listing:
            found = sorted(listing, key=lambda item: item.name)
    except OSError as error:
        raise _read_error(prefix.rstrip("/") or str(folder), error) from error
    for item in found:
        if _is_excluded(item.name) or (
            is_project and not prefix and item.name in EXCLUDED_AT_PROJECT_ROOT
        ):
            continue
        path = prefix + item.name
        _check_name(path)
        real = _inside(root, Path(item.path), path) if item.is_symlink() else Path(item.path)
        try:
            found_stat = real.stat(follow_symlinks=False)
        except OSError as error:
            raise _read_error(path, error) from error
        if stat.S_ISDIR(found_stat.st_mode):
            if real in ancestors:
                raise InvalidTrainerError(
                    f"{path!r} of the trainer is a link to a folder around it: the tree has no"
                    " end. Remove the link."
                )
            if not (real / "pyvenv.cfg").exists():  # a virtual environment, whatever its name
                yield from _walk(root, real, path + "/", is_project, (*ancestors, real))
        elif stat.S_ISREG(found_stat.st_mode):
            executable = bool(found_stat.st_mode & stat.S_IXUSR)
            stamp = (found_stat.st_mtime_ns, found_stat.st_ino)
            yield _Entry(path, real, executable, found_stat.st_size, stamp)
        else:
            raise InvalidTrainerError(
                f"{path!r} of the trainer is a device, pipe or socket. Take it out of the tree."
            )


def _is_excluded(name: str) -> bool:
    return (
        name in EXCLUDED_FOLDERS
        or name in EXCLUDED_FILES
        or name.endswith(EXCLUDED_SUFFIXES)
        or name.startswith(EXCLUDED_PREFIXES)
    )


def _inside(root: Path, link: Path, path: str) -> Path:
    try:
        real = link.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop, before Python 3.13
        raise InvalidTrainerError(
            f"{path!r} of the trainer is a link to {str(link.readlink())!r}, which isn't there or"
            " leads back to itself. Mend or remove it."
        ) from error
    if not real.is_relative_to(root):
        raise InvalidTrainerError(
            f"{path!r} of the trainer is a link to {str(link.readlink())!r}, outside {root}."
            " Only files of the tree are packaged: put a copy there, or make the shared code a"
            " package of its own (packages=[...])."
        )
    return real


def _check_name(path: str) -> None:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidTrainerError(
            f"The trainer holds a file whose name isn't UTF-8: {os.fsencode(path)!r}. Rename it."
        ) from error
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in path):
        raise InvalidTrainerError(
            f"The trainer holds a file with a control character in its name: {path!r}. Rename it."
        )
