"""What ``jobs.create`` checks beyond the job's own words: storage, and what can be run here."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Mapping
from typing import Any

from airflow_aiptraining.core import cluster, machines
from airflow_aiptraining.local.errors import ApiError
from airflow_aiptraining.local.object_store import ObjectStore, StoredObject

_URI = re.compile(r"gs://([^/]+)/(.+)")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.(tar\.gz|tgz|zip|whl)")
# (path in trainingInput, what it asks for)
_NOT_YET = (
    ("hyperparameters", "hyperparameter tuning"),
    ("nasJobSpec", "neural architecture search"),
    *((f"{field}Config.imageUri", "custom containers") for _, field in machines.ROLE_FIELDS),
)
_TPU_TIER = "BASIC_TPU"
MAX_REPLICAS = 32
"""Replicas that a job may have if nobody says; PREMIUM_1 has 31."""


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Refuse jobs that this service would not run as they are meant.

    :param body: what the client sent, keys in either spelling.
    :raises ApiError: 501.
    """
    if _at(body, "predictionInput"):
        raise _unimplemented("batch prediction")
    training_input = _at(body, "trainingInput")
    if not isinstance(training_input, Mapping):
        return
    for path, what in _NOT_YET:
        if _at(training_input, path) not in (None, "", "0", 0):
            raise _unimplemented(what)
    tier = str(_at(training_input, "scaleTier") or "").upper().replace("-", "_")
    types = [_at(training_input, f"{field}Type") for _, field in machines.ROLE_FIELDS]
    if tier == _TPU_TIER or machines.CLOUD_TPU in types:
        raise _unimplemented("TPUs")


def check_size(training_input: Mapping[str, Any], most: int) -> list[tuple[str, str]]:
    """Return what is wrong with the number of a job's replicas, as (path, description).

    :param training_input: a valid one.
    :param most: the most that a job may have.
    """
    counts = cluster.replica_counts(training_input)
    if (asked := sum(counts.values())) <= most:
        return []
    parts = " + ".join(f"{count} {role}" for role, count in counts.items())
    text = (
        f"The job has {asked} replicas ({parts}); this service runs {most} of one job at most, "
        "each as a process on one machine. Ask for fewer, or start the service with "
        f"'--max-replicas {asked}'."
    )
    return [(cluster.count_field(training_input), text)]


def asked_runtime(body: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return runtime and Python version that a job asks for; a container has neither.

    :param body: what the client sent, keys in either spelling.
    """
    training_input = _at(body, "trainingInput")
    if not isinstance(training_input, Mapping) or _at(training_input, "masterConfig.imageUri"):
        return None, None
    return _at(training_input, "runtimeVersion"), _at(training_input, "pythonVersion")


def check_storage(training_input: Mapping[str, Any], objects: ObjectStore) -> list[tuple[str, str]]:
    """Return what is wrong with the storage that a job names, as (field, description).

    :param training_input: a valid one.
    """
    problems = []
    for index, uri in enumerate(training_input.get("packageUris") or []):
        if problem := _package_problem(uri, objects):
            problems.append((f"package_uris[{index}]", problem))
    if job_dir := training_input.get("jobDir"):
        name = job_dir.removeprefix("gs://").partition("/")[0]
        bucket = objects.get_bucket(name)
        if bucket is None:
            problems.append(("job_dir", f"The bucket {name} of {job_dir} does not exist."))
        elif bucket.is_read_only:
            problems.append(
                ("job_dir", f"The bucket {name} of {job_dir} is read-only: choose another one.")
            )
    return problems


def _package_problem(uri: str, objects: ObjectStore) -> str:
    match = _URI.fullmatch(uri)
    if match is None:
        return f"'{uri}' is not an object in Cloud Storage, 'gs://bucket/…'."
    file_name = match[2].rpartition("/")[2]
    if not _FILE_NAME.fullmatch(file_name):
        return (
            f"'{file_name}' is not the name of a package: .tar.gz, .zip or .whl is expected, with "
            "letters, digits and . _ - + ! before it."
        )
    found = objects.get(match[1], match[2])
    if found is None:
        return (
            f"The provided GCS paths cannot be read: there is no object {uri}. Upload it before "
            "you create the job."
        )
    return _archive_problem(uri, file_name, found)


def _archive_problem(uri: str, file_name: str, found: StoredObject) -> str:
    """Look at the archive's first entry; the rest is the installer's business."""
    try:
        if file_name.endswith((".whl", ".zip")):
            with zipfile.ZipFile(found.path) as archive:
                is_empty = not archive.namelist()
        else:
            with tarfile.open(found.path) as tar:
                is_empty = tar.next() is None
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
        return f"{uri} is not a readable archive: {error}."
    return f"{uri} is an empty archive." if is_empty else ""


def _at(mapping: Mapping[str, Any], path: str) -> Any:
    """Return the value at a camelCase path, which the client may have written in snake_case."""
    found: Any = mapping
    for part in path.split("."):
        if not isinstance(found, Mapping):
            return None
        snake = re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), part)
        found = found.get(part, found.get(snake))
    return found


def _unimplemented(what: str) -> ApiError:
    return ApiError(
        501,
        "UNIMPLEMENTED",
        f"The embedded service runs jobs with Python packages; it does not support {what} yet.",
    )
