"""Put a trainer's archives into the staging bucket, each once, addressed by its content.

A built archive lies at ``<staging>/packages/<tree hash>/<file>``, a ready one at
``<staging>/packages/<sha256 of its bytes>/<file>``. Both are written with ``ifGenerationMatch=0``:
whoever comes second finds the first one's object. A year's backfill on any number of workers builds
and uploads once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_aiptraining.exceptions import InvalidTrainerError, StagingError
from airflow_aiptraining.packaging.archives import (
    ArchiveContents,
    check_file_name,
    check_module,
    check_module_name,
    inspect_archive,
)
from airflow_aiptraining.packaging.bucket import (
    check_staging,
    download,
    find_object,
    list_folder,
    split_uri,
    upload_once,
)
from airflow_aiptraining.packaging.build import (
    build_snapshot,
    check_generated_module,
    logger,
    work_folder,
)
from airflow_aiptraining.packaging.source_tree import ArchiveFormat, Snapshot, take_snapshot
from airflow_aiptraining.packaging.trainer_project import ProjectKind, find_trainer

if TYPE_CHECKING:
    from google.cloud.storage import Client

MAX_CHECKED_DOWNLOAD = 64 * 1024**2
"""A ready archive in a bucket is fetched to look for the module only up to this size, in bytes."""

_MAX_MODULES_TEXT = 4_000  # of the 8 KiB that Cloud Storage allows for an object's metadata


@dataclass(frozen=True)
class PackagedTrainer:
    """A trainer's archive in the staging bucket.

    :param uri: ``gs://`` URI for ``packageUris``.
    :param tree_hash: identity of the source tree, sha256 in hex.
    :param built: this call built it.
    :param uploaded: this call's upload is the object.
    :param size: bytes of the object.
    """

    uri: str
    tree_hash: str
    built: bool
    uploaded: bool
    size: int


def package_trainer(
    package_path: str | os.PathLike[str],
    *,
    staging: str,
    client: Client,
    module_name: str | None = None,
    archive_format: ArchiveFormat = "auto",
    log: logging.Logger = logger,
) -> PackagedTrainer:
    """Make sure that a trainer's archive is in the staging bucket; build it only if it isn't.

    :param package_path: a package folder (its project is in its parent), or a project's root.
    :param staging: ``gs://bucket`` or ``gs://bucket/prefix``.
    :param module_name: must be in the archive, if given.
    :raises InvalidTrainerError: the tree can't be packaged, or lacks the module; nothing was
        uploaded.
    :raises StagingError: the bucket is missing or refuses.
    :raises TransientServiceError: the storage service doesn't answer; a retry may cure it.
    """
    bucket, prefix = split_uri(staging)
    if module_name is not None:
        check_module_name(module_name)
    trainer = find_trainer(package_path)
    with work_folder() as work:
        snapshot = take_snapshot(trainer, work, archive_format, log)
        check_generated_module(snapshot, module_name)
        folder = f"{prefix}packages/{snapshot.tree_hash}/"
        staged = _staged(client, bucket, folder, snapshot)
        if staged is not None:
            if module_name is not None and trainer.kind is not ProjectKind.GENERATED:
                check_module(module_name, _modules_of(client, staged, work), _uri(staged))
            log.info("Trainer %s is unchanged: %s", trainer.root, _uri(staged))
            return PackagedTrainer(_uri(staged), snapshot.tree_hash, False, False, staged.size)
        check_staging(staging, client)
        built = build_snapshot(snapshot, work / "dist", archive_format, log=log)
        if module_name is not None:
            check_module(module_name, built.contents.modules, built.path.name)
        metadata = {"tree-hash": snapshot.tree_hash, **_modules_text(built.contents)}
        ours = upload_once(client, bucket, folder + built.path.name, built.path, metadata)
        # Other workers may have raced, even to another name (a version made of today's date): all
        # agree on the oldest.
        staged = _staged(client, bucket, folder, snapshot)
        if staged is None:
            raise StagingError(
                f"gs://{bucket}/{folder}{built.path.name} was uploaded and is gone again. Look at"
                " the bucket's lifecycle rules, then run the task again."
            )
        uploaded = ours is not None and staged.generation == ours
        log.info("Trainer %s is staged: %s", trainer.root, _uri(staged))
        return PackagedTrainer(_uri(staged), snapshot.tree_hash, True, uploaded, staged.size)


def stage_archives(
    packages: Sequence[str],
    *,
    staging: str,
    client: Client,
    module_name: str | None = None,
    log: logging.Logger = logger,
) -> list[str]:
    """Make sure that ready archives are in Cloud Storage.

    :param packages: ``gs://`` URIs (kept, after a look) and local files (uploaded).
    :param staging: ``gs://bucket`` or ``gs://bucket/prefix`` for the local ones.
    :param module_name: must be in one of them, if given.
    :return: their URIs, in the order given.
    :raises InvalidTrainerError: an archive is unfit, none has the module, or two share a file
        name (the service downloads them into one folder); nothing was uploaded.
    :raises StagingError: an object or the bucket is missing, or refuses.
    :raises TransientServiceError: the storage service doesn't answer; a retry may cure it.
    """
    check_base_names(packages)
    if module_name is not None:
        check_module_name(module_name)
    bucket, prefix = split_uri(staging)
    with work_folder() as work:
        local: dict[str, tuple[Path, str, ArchiveContents]] = {}
        for package in packages:
            if not package.startswith("gs://"):
                copy, digest = _private_copy(Path(package), work)
                local[package] = (copy, digest, inspect_archive(copy))
        remote = [_ready_object(client, p, log) for p in packages if p.startswith("gs://")]
        if module_name is not None:
            found = [contents for _, _, contents in local.values()]
            _check_module_anywhere(client, module_name, found, remote, work)
        if local:
            check_staging(staging, client)
        uris = []
        for package in packages:
            if package not in local:
                uris.append(package)
                continue
            path, digest, contents = local[package]
            name = f"{prefix}packages/{digest}/{path.name}"
            if find_object(client, bucket, name) is None:
                metadata = {"sha256": digest, **_modules_text(contents)}
                upload_once(client, bucket, name, path, metadata)
                log.info("Uploaded %s to gs://%s/%s", package, bucket, name)
            uris.append(f"gs://{bucket}/{name}")
        return uris


def check_base_names(packages: Sequence[str]) -> None:
    """Check that no two archives share a file name.

    The service downloads all of them into one folder, so the second would replace the first.

    :raises InvalidTrainerError: two do.

    Source: gcloud 528 refuses the same, measured.
    """
    names = Counter(package.rsplit("/", 1)[-1] for package in packages)
    for name, count in names.items():
        if count > 1:
            same = [package for package in packages if package.rsplit("/", 1)[-1] == name]
            raise InvalidTrainerError(
                f"Packages {' and '.join(same)} have the same file name, so one would replace the"
                " other on the training machine. Rename one, or raise its version."
            )


def _staged(client: Client, bucket: str, folder: str, snapshot: Snapshot) -> Any:
    """Return the blob that all workers use for a tree, None if there is none."""
    blobs = [blob for blob in list_folder(client, bucket, folder) if not blob.name.endswith("/")]
    if not blobs:
        return None
    staged = min(blobs, key=lambda blob: (blob.generation, blob.name))
    metadata = staged.metadata or {}
    if metadata.get("tree-hash") != snapshot.tree_hash or not staged.size:
        raise StagingError(
            f"{_uri(staged)} stands where the archive of {snapshot.trainer.root} belongs, but"
            " wasn't put there by this package (its metadata lacks the tree's hash). Find out who"
            " writes there, delete it, and run the task again."
        )
    return staged


def _uri(blob: Any) -> str:
    return f"gs://{blob.bucket.name}/{blob.name}"


def _modules_text(contents: ArchiveContents) -> dict[str, str]:
    text = ",".join(sorted(contents.modules))
    return {"modules": text} if 0 < len(text.encode()) <= _MAX_MODULES_TEXT else {}


def _modules_of(client: Client, blob: Any, work: Path) -> frozenset[str]:
    listed = (blob.metadata or {}).get("modules")
    if listed:
        return frozenset(listed.split(","))
    folder = work / "fetched" / hashlib.sha256(blob.name.encode()).hexdigest()
    folder.mkdir(parents=True)
    path = folder / blob.name.rsplit("/", 1)[-1]
    download(client, blob, path)
    return inspect_archive(path).modules


def _private_copy(path: Path, work: Path) -> tuple[Path, str]:
    """Copy a local archive, so that what is looked into, hashed and uploaded is one thing."""
    if not path.is_file():
        inspect_archive(path)  # says what is wrong
    check_file_name(path.name)
    target = work / path.name
    digest = hashlib.sha256()
    try:
        with path.open("rb") as source, target.open("xb") as copy:
            while block := source.read(1024 * 1024):
                digest.update(block)
                copy.write(block)
    except PermissionError as error:
        raise InvalidTrainerError(
            f"Package {path} can't be read by this worker's user: {error.strerror}."
        ) from error
    return target, digest.hexdigest()


def _ready_object(client: Client, uri: str, log: logging.Logger) -> Any:
    """Return the blob of a ready archive, None where only the service may see it.

    :raises StagingError: there is no such object.
    """
    matched = re.fullmatch(r"gs://([^/]+)/(.+)", uri)
    if matched is None:
        raise InvalidTrainerError(f"Package {uri!r} is not a gs://bucket/object URI.")
    check_file_name(uri.rsplit("/", 1)[-1])
    try:
        blob = find_object(client, matched[1], matched[2])
    except StagingError as error:
        from google.api_core.exceptions import Forbidden, Unauthorized

        if not isinstance(error.__cause__, Forbidden | Unauthorized):
            raise
        # The job's service account may well be allowed to: the service will tell.
        log.warning("Package %s can't be looked at from here: %s", uri, error)
        return None
    if blob is None:
        raise StagingError(
            f"Package {uri} doesn't exist (project {client.project!r}). Upload it, or mend the URI;"
            " a local file is uploaded for you."
        )
    return blob


def _check_module_anywhere(
    client: Client,
    module_name: str,
    found: Sequence[ArchiveContents],
    remote: Sequence[Any],
    work: Path,
) -> None:
    modules = {module for contents in found for module in contents.modules}
    names = [contents.name for contents in found]
    for blob in remote:
        if module_name in modules:
            return
        if blob is None or blob.size > MAX_CHECKED_DOWNLOAD:
            return  # it may be in there
        modules |= _modules_of(client, blob, work)
        names.append(_uri(blob))
    check_module(module_name, modules, " or ".join(names) or "packages, which is empty")
