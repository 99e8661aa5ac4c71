"""Build a trainer's archive from a private copy of its tree.

**Wheel or source archive.** gcloud uploads source archives. Here a project of pure Python becomes a
wheel: every service installs it with a plain ``pip install`` that runs no code and asks no registry
for build tools (an sdist costs each replica an isolated build, about a second and a fetched
setuptools), what it installs is known before upload, and its bytes are the same on every worker. A
project that compiles extensions becomes a source archive, because this worker's binaries need not
run on the service's machines.

**Where.** With the interpreter and setuptools that are installed here, so that a worker without a
package registry can build; in an isolated environment only if the project's own build tools aren't
installed. Always in the copy: nothing is written beside the sources.
"""

from __future__ import annotations

import gzip
import logging
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from airflow_aiptraining.exceptions import InvalidTrainerError
from airflow_aiptraining.packaging.archives import (
    ArchiveContents,
    check_module,
    inspect_archive,
    runnable_modules,
)
from airflow_aiptraining.packaging.backends import Distribution, build_distribution
from airflow_aiptraining.packaging.source_tree import (
    GENERATED_VERSION,
    SOURCE_DATE,
    ArchiveFormat,
    Snapshot,
    take_snapshot,
)
from airflow_aiptraining.packaging.trainer_project import ProjectKind, find_trainer

logger = logging.getLogger(__name__)

# Written out in full: what finders of packages leave out (folders without __init__.py, data) is
# what trainers miss on the training machine.
_SETUP_PY = """\
from setuptools import setup

setup(
    name={name!r},
    version={version!r},
    packages={packages!r},
    package_data={package_data!r},
    include_package_data=False,
    zip_safe=False,
)
"""
_PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
"""


@dataclass(frozen=True)
class BuiltArchive:
    """An archive, built and looked into.

    :param path: the file.
    :param contents: what is inside.
    """

    path: Path
    contents: ArchiveContents


@contextmanager
def work_folder() -> Iterator[Path]:
    """Give a temporary folder, removed at the end, for copies and builds."""
    with tempfile.TemporaryDirectory(prefix="aiptraining-") as folder:
        yield Path(folder)


def build_package(
    package_path: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    *,
    module_name: str | None = None,
    archive_format: ArchiveFormat = "auto",
    log: logging.Logger = logger,
) -> Path:
    """Build a trainer's archive into a folder, as ``aiptraining package`` does.

    :param package_path: a package folder (its project is in its parent), or a project's root.
    :param out_dir: made if it isn't there; a file of the same name is replaced.
    :param module_name: checked to be in the archive, if given.
    :return: the archive.
    :raises InvalidTrainerError: it can't be built, or lacks the module.
    """
    trainer = find_trainer(package_path)
    with work_folder() as work:
        snapshot = take_snapshot(trainer, work, archive_format, log)
        check_generated_module(snapshot, module_name)
        built = build_snapshot(snapshot, work / "dist", archive_format, log=log)
        if module_name is not None:
            check_module(module_name, built.contents.modules, built.path.name)
        target = Path(out_dir)
        target.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copyfile(built.path, target / built.path.name))


def check_generated_module(snapshot: Snapshot, module_name: str | None) -> None:
    """Check the module before the build, where the tree is the archive's content.

    :raises InvalidTrainerError: it isn't there.
    """
    if module_name is not None and snapshot.trainer.kind is ProjectKind.GENERATED:
        check_module(module_name, runnable_modules(snapshot.files), str(snapshot.trainer.root))


def build_snapshot(
    snapshot: Snapshot,
    out_dir: Path,
    archive_format: ArchiveFormat = "auto",
    *,
    log: logging.Logger = logger,
) -> BuiltArchive:
    """Build the archive of a copied tree.

    :param snapshot: its folder is built in.
    :param out_dir: an empty or missing folder.
    :param archive_format: ``auto``: a wheel, or a source archive if the wheel isn't for every
        machine.
    :raises InvalidTrainerError: the build fails, its tools can't be had, or it leaves out files.
    """
    if snapshot.trainer.kind is ProjectKind.GENERATED:
        _write_generated_project(snapshot)
    root = snapshot.trainer.root

    def build(distribution: Distribution) -> Path:
        return build_distribution(snapshot.folder, distribution, out_dir, root=root, log=log)

    if archive_format == "sdist":
        path = build("sdist")
    else:
        path = build("wheel")
        if archive_format == "auto" and not path.name.endswith("-none-any.whl"):
            log.info("%s is for this worker's platform only: building a source archive", path.name)
            path = build("sdist")
    if path.name.endswith(".tar.gz"):
        _normalize(path)
    contents = inspect_archive(path)
    _check_complete(snapshot, contents)
    log.info("Built %s (%d bytes) from %s", path.name, path.stat().st_size, root)
    return BuiltArchive(path, contents)


def _write_generated_project(snapshot: Snapshot) -> None:
    package = snapshot.trainer.package
    assert package is not None
    importable = set()
    for file in snapshot.files:
        parts = PurePosixPath(file).parent.parts
        # setuptools turns dots into folders, so only identifiers can be packages; the rest is data.
        if file.endswith(".py") and all(part.isidentifier() for part in parts):
            importable.add(parts)
    data = [
        file
        for file in snapshot.files
        if not file.endswith(".py") or PurePosixPath(file).parent.parts not in importable
    ]
    text = _SETUP_PY.format(
        # Distribution names are narrower than identifiers: no underscore at the ends, ASCII.
        name=re.sub(r"[^A-Za-z0-9._-]", "-", package).strip("._-") or "trainer",
        version=GENERATED_VERSION,
        packages=sorted(".".join(parts) for parts in importable),
        package_data={package: [_literal_glob(file.split("/", 1)[1]) for file in data]},
    )
    (snapshot.folder / "setup.py").write_text(text, "utf-8")
    (snapshot.folder / "pyproject.toml").write_text(_PYPROJECT, "utf-8")


def _literal_glob(path: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", path)


def _check_complete(snapshot: Snapshot, contents: ArchiveContents) -> None:
    package = snapshot.trainer.package
    if package is None:
        return
    if snapshot.trainer.kind is ProjectKind.GENERATED:
        lost = sorted(set(snapshot.files) - contents.files)
        if lost:
            raise InvalidTrainerError(
                f"{lost[0]!r} ({len(lost)} files in all) didn't get into {contents.name}. Rename"
                " it, or give the trainer a pyproject.toml or setup.py of its own."
            )
    elif not any(f"/{package}/" in f"/{file}" for file in contents.files):
        raise InvalidTrainerError(
            f"The project in {snapshot.trainer.root} leaves package {package!r} out of"
            f" {contents.name}. Add it to the packages in its {snapshot.trainer.kind.value}, or"
            " move the folder away from that file to have it packaged alone."
        )


def _normalize(path: Path) -> None:
    """Rewrite a source archive so that equal trees make equal bytes."""
    target = path.with_name(path.name + ".tmp")
    with tarfile.open(path) as source, target.open("xb") as raw:
        packed = gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=SOURCE_DATE)
        with packed, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for member in sorted(source, key=lambda member: member.name):
                member.mtime = SOURCE_DATE
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                member.pax_headers = {}
                tar.addfile(member, source.extractfile(member) if member.isreg() else None)
    target.replace(path)
