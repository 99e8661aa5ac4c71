"""What a training job must fulfil beyond its shapes: ids, code, machines, limits, identity.

Each rule sees the job through a :class:`~.job_view.View`, which knows what can't be judged (broken
and reported already, or still a template): a rule never builds on such a value, and never calls it
missing.

Source: ML v1 discovery, revision 20251213, where nothing else is named.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import PurePosixPath

from airflow_aiptraining.core.gs_uris import parse_gs_uri
from airflow_aiptraining.core.job_machine_rules import is_lost, machine_problems
from airflow_aiptraining.core.job_scalars import Unread, duration_seconds
from airflow_aiptraining.core.job_tuning_rules import tuning_problems
from airflow_aiptraining.core.job_view import Problem, View


def job_problems(job: View) -> Iterator[Problem]:
    """Yield every broken rule of a training job.

    :param job: view of the whole ``Job``.
    """
    yield from _job_id_problems(job)
    yield from _label_problems(job)
    if job.missing("trainingInput"):
        yield Problem("trainingInput", "missing; it says what the job runs")
        return
    training = job.inside("trainingInput")
    if training.missing("region"):
        yield Problem(
            training.at("region"),
            "missing; name the Compute Engine region to run in, such as us-central1",
        )
    yield from machine_problems(training)
    yield from _code_problems(training)
    yield from _runtime_problems(training)
    yield from _args_problems(training)
    yield from _job_dir_problems(training)
    yield from _scheduling_problems(training)
    yield from _identity_problems(training)
    yield from tuning_problems(training)


# --- the job itself

_JOB_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_LONGEST_JOB_ID = 128
_MOST_LABELS = 64
_LONGEST_LABEL = 63
_JOB_ID_PLACEHOLDER = "{job_id}"


def _job_id_problems(job: View) -> Iterator[Problem]:
    if job.missing("jobId"):
        yield Problem("jobId", "missing; every job needs an id")
    job_id = job.get("jobId")
    if not job_id:
        return
    if len(job_id) > _LONGEST_JOB_ID:
        yield Problem(
            "jobId", f"has {len(job_id)} characters; at most {_LONGEST_JOB_ID} are allowed"
        )
    if not _JOB_ID.match(job_id):
        yield Problem(
            "jobId",
            f"{job_id!r} is not legal: letters, digits and underscores only, a letter first",
        )


def _label_problems(job: View) -> Iterator[Problem]:
    """Source of the pattern: gcloud's check of ``--labels``; the API's is the same."""
    labels = job.get("labels") or {}
    if len(labels) > _MOST_LABELS:
        yield Problem("labels", f"{len(labels)} labels; a job can have {_MOST_LABELS}")
    for key, value in labels.items():
        path = f"labels.{key}"
        # Categories Ll, Lo: lower-case letters, and letters of scripts that have no case.
        if not (_is_label(key) and key and unicodedata.category(key[0]) in ("Ll", "Lo")):
            yield Problem(
                path,
                f"the key {key!r} is not legal: 1 to {_LONGEST_LABEL} lower-case letters, digits, "
                "'_' and '-', a letter first",
            )
        if isinstance(value, Unread):
            continue
        if not _is_label(value.replace(_JOB_ID_PLACEHOLDER, "j")):
            yield Problem(
                path,
                f"the value {value!r} is not legal: at most {_LONGEST_LABEL} lower-case letters, "
                "digits, '_' and '-'",
            )


def _is_label(text: str) -> bool:
    return len(text) <= _LONGEST_LABEL and all(
        character in "_-" or unicodedata.category(character) in ("Ll", "Lo", "Nd")
        for character in text
    )


# --- the code that runs

_MOST_PACKAGES = 100
#: What pip installs from a file.
_ARCHIVES = (".tar.gz", ".tgz", ".whl", ".zip", ".tar", ".tar.bz2", ".tar.xz")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")


def _code_problems(training: View) -> Iterator[Problem]:
    container = training.given("masterConfig.imageUri")
    for field, what in (
        ("packageUris", "the archives with the trainer's code"),
        ("pythonModule", "the module to run"),
    ):
        if not container and training.missing(field):
            yield Problem(
                training.at(field),
                f"missing; name {what}, or a container in masterConfig.imageUri "
                "(built-in algorithms, which need neither, are not offered)",
            )
    if container and training.complete and not is_lost(training, "masterConfig.imageUri"):
        packages, module = training.given("packageUris"), training.given("pythonModule")
        if packages != module:
            field = "packageUris" if packages else "pythonModule"
            other = "pythonModule" if packages else "packageUris"
            yield Problem(
                training.at(field),
                f"given without {other}; with masterConfig.imageUri give both, or neither",
            )
    yield from _package_problems(training)
    module = training.get("pythonModule")
    if module and not _MODULE.match(module):
        advice = "write it as Python imports it, such as trainer.task"
        if module.endswith(".py") or "/" in module:
            dotted = ".".join(part for part in module.removesuffix(".py").split("/") if part)
            advice = f"it is a module, not a file: {dotted}"
        yield Problem(training.at("pythonModule"), f"{module!r} is not a module's name; {advice}")


def _package_problems(training: View) -> Iterator[Problem]:
    uris = dict(training.texts("packageUris"))
    count = len(training.get("packageUris") or ())
    if count > _MOST_PACKAGES:
        yield Problem(
            training.at("packageUris"),
            f"{count} packages; at most {_MOST_PACKAGES} are allowed",
        )
    names = Counter(PurePosixPath(uri).name for uri in uris.values())
    for path, uri in uris.items():
        try:
            _, name = parse_gs_uri(uri)
        except ValueError as error:
            yield Problem(path, str(error))
            continue
        if not name.endswith(_ARCHIVES):
            yield Problem(
                path,
                f"{uri!r} is no archive that pip installs; its name must end with one of "
                f"{', '.join(_ARCHIVES)}",
            )
        elif names[PurePosixPath(uri).name] > 1:
            # The service copies all packages into one folder.
            yield Problem(
                path, f"two packages have the file name {PurePosixPath(uri).name!r}; rename one"
            )


# --- runtime and Python

_VERSION = re.compile(r"\d{1,9}\.\d{1,9}(\.\d+)?\Z", re.ASCII)
#: Python version -> first and last runtime (major, minor) that had it; None: no bound.
_PYTHON_RUNTIMES: dict[tuple[int, int], tuple[tuple[int, int], tuple[int, int] | None]] = {
    (2, 7): ((0, 0), (1, 15)),
    (3, 5): ((1, 4), (1, 14)),
    (3, 7): ((1, 15), None),
}


def _runtime_problems(training: View) -> Iterator[Problem]:
    container = training.given("masterConfig.imageUri")
    image_is_known = not is_lost(training, "masterConfig.imageUri")
    if container and image_is_known and training.given("runtimeVersion"):
        yield Problem(
            training.at("runtimeVersion"),
            "given together with masterConfig.imageUri; the image brings its own software: remove "
            "one of them",
        )
    if not container and not training.default_runtime:
        for field in ("runtimeVersion", "pythonVersion"):
            if training.missing(field):
                yield Problem(
                    training.at(field),
                    "missing; a job names runtimeVersion and pythonVersion, or an image in "
                    "masterConfig.imageUri",
                )
    runtime = yield from _version(training, "runtimeVersion")
    python = yield from _version(training, "pythonVersion")
    if runtime is None or python is None:
        return
    if problem := pair_problem(runtime, python):
        yield Problem(training.at("pythonVersion"), problem)


def pair_problem(runtime: tuple[int, int], python: tuple[int, int]) -> str:
    """Return why no runtime of this version had such a Python; empty where it may have had it."""
    if python not in _PYTHON_RUNTIMES:
        return ""
    first, last = _PYTHON_RUNTIMES[python]
    if runtime >= first and (last is None or runtime <= last):
        return ""
    bounds = f"{_dotted(first)} to {_dotted(last)}" if last else f"{_dotted(first)} or later"
    if first == (0, 0) and last:
        bounds = f"{_dotted(last)} or earlier"
    return (
        f"Python {_dotted(python)} never was in runtime {_dotted(runtime)}; it is in runtimes "
        f"{bounds}"
    )


def read_version(text: str) -> tuple[int, int] | None:
    """Return major and minor of a version, None if it is none."""
    if not _VERSION.match(text):
        return None
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _version(training: View, field: str) -> Generator[Problem, None, tuple[int, int] | None]:
    """Yield a problem with a version's form; return major and minor where there is none."""
    text = training.get(field)
    if not text:
        return None
    version = read_version(text)
    if version is None:
        example = "2.11" if field == "runtimeVersion" else "3.7"
        yield Problem(
            training.at(field), f"{text!r} is not a version; write it as '{example}', in quotes"
        )
    return version


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


# --- arguments and paths

#: gcloud's flags that no trainer has for its own use, and where their values belong.  Flags that
#: trainers often have too (--config, --region, --labels, --worker-count ...) stay theirs.
_SERVICE_FLAGS = {
    "--job-dir": "jobDir; the service itself passes --job-dir to the trainer",
    "--staging-bucket": "the task's staging_bucket",
    "--package-path": "the task's package_path",
    "--module-name": "pythonModule",
    "--runtime-version": "runtimeVersion",
    "--python-version": "pythonVersion",
    "--scale-tier": "scaleTier",
    "--master-machine-type": "masterType",
    "--master-image-uri": "masterConfig.imageUri",
    "--master-accelerator": "masterConfig.acceleratorConfig",
    "--worker-machine-type": "workerType",
    "--worker-image-uri": "workerConfig.imageUri",
    "--worker-accelerator": "workerConfig.acceleratorConfig",
    "--parameter-server-machine-type": "parameterServerType",
    "--parameter-server-count": "parameterServerCount",
    "--parameter-server-image-uri": "parameterServerConfig.imageUri",
    "--parameter-server-accelerator": "parameterServerConfig.acceleratorConfig",
    "--use-chief-in-tf-config": "useChiefInTfConfig",
    "--tpu-tf-version": "workerConfig.tpuTfVersion",
    "--enable-web-access": "enableWebAccess",
    "--stream-logs": "nowhere: logs are always followed",
}


def _args_problems(training: View) -> Iterator[Problem]:
    for path, item in training.texts("args"):
        flag = item.split("=", 1)[0]
        if flag in _SERVICE_FLAGS:
            yield Problem(
                path,
                f"{flag} is for the service, not for the trainer; its value belongs in "
                f"{_SERVICE_FLAGS[flag]}",
            )


def _job_dir_problems(training: View) -> Iterator[Problem]:
    job_dir = training.get("jobDir")
    if job_dir:
        try:
            parse_gs_uri(job_dir)
        except ValueError as error:
            yield Problem(training.at("jobDir"), str(error))


# --- limits

_SHORTEST_WAIT = 1800
_HIGHEST_PRIORITY = 1000


def _scheduling_problems(training: View) -> Iterator[Problem]:
    scheduling = training.inside("scheduling")
    running = scheduling.get("maxRunningTime")
    if running and duration_seconds(running) <= 0:
        yield Problem(
            scheduling.at("maxRunningTime"), f"{running!r} leaves the job no time; it must be more"
        )
    waiting = scheduling.get("maxWaitTime")
    if waiting and duration_seconds(waiting) < _SHORTEST_WAIT:
        yield Problem(
            scheduling.at("maxWaitTime"),
            f"{waiting!r} is too short; the service takes {_SHORTEST_WAIT}s (30 minutes) or more",
        )
    priority = scheduling.get("priority")
    if priority is not None and not 0 <= priority <= _HIGHEST_PRIORITY:
        yield Problem(
            scheduling.at("priority"), f"{priority} is out of range, 0 to {_HIGHEST_PRIORITY}"
        )


# --- identity, network, key

_FORMS = (
    (
        "serviceAccount",
        re.compile(r"([^@\s]+@[^@\s.]+(\.[^@\s.]+)+|\d+)\Z"),
        "an e-mail address such as name@project.iam.gserviceaccount.com, or the account's number",
    ),
    (
        "network",
        re.compile(r"projects/\d+/global/networks/[a-z]([a-z0-9-]*[a-z0-9])?\Z"),
        "projects/<project number>/global/networks/<name>, such as "
        "projects/12345/global/networks/my-vpc",
    ),
    (
        "encryptionConfig.kmsKeyName",
        re.compile(r"projects/[^/\s]+/locations/[^/\s]+/keyRings/[^/\s]+/cryptoKeys/[^/\s]+\Z"),
        "projects/<project>/locations/<region>/keyRings/<ring>/cryptoKeys/<key>",
    ),
)


def _identity_problems(training: View) -> Iterator[Problem]:
    for field, form, description in _FORMS:
        value = training.get(field)
        if value and not form.match(value):
            yield Problem(training.at(field), f"{value!r} is not of the form {description}")
