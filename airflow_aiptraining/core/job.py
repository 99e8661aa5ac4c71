"""The ML v1 Job: checked against every rule of the API at once, and made ready for the wire.

:func:`check_job` tells all violations, :func:`wire_job` returns the body to send.  The shapes are
in :mod:`.job_shapes`, the rules between fields in :mod:`.job_rules`; here a job is read: keys in
either spelling, text where numbers are meant, gcloud's names of enum values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from airflow_aiptraining.core.job_keys import read_keys
from airflow_aiptraining.core.job_rules import job_problems
from airflow_aiptraining.core.job_scalars import Unread
from airflow_aiptraining.core.job_shapes import (
    AcceleratorConfig,
    DiskConfig,
    EncryptionConfig,
    ExplanationInput,
    ExplanationOutput,
    HyperparameterOutput,
    HyperparameterSpec,
    Job,
    NasSpec,
    ParameterSpec,
    PredictionInput,
    PredictionOutput,
    ReplicaConfig,
    Scheduling,
    TrainingInput,
    TrainingOutput,
)
from airflow_aiptraining.core.job_view import Problem, View
from airflow_aiptraining.exceptions import InvalidJobError, Violation

__all__ = [
    "AcceleratorConfig",
    "DiskConfig",
    "EncryptionConfig",
    "ExplanationInput",
    "ExplanationOutput",
    "HyperparameterOutput",
    "HyperparameterSpec",
    "Job",
    "NasSpec",
    "ParameterSpec",
    "PredictionInput",
    "PredictionOutput",
    "ReplicaConfig",
    "Scheduling",
    "TrainingInput",
    "TrainingOutput",
    "check_job",
    "wire_job",
]


def check_job(
    job: Mapping[str, Any],
    *,
    complete: bool = True,
    default_runtime: bool = False,
    origins: Mapping[str, str] | None = None,
) -> list[Violation]:
    """Return every rule that a training job breaks; an empty list for a good one.

    :param job: a ``Job`` to submit; keys in camelCase or snake_case, values as YAML, JSON or Python
        code give them.  ``None`` means not given.
    :param complete: whether what is missing is a violation too.  ``False`` is for partial files:
        there, texts with Jinja in them are left to be judged once they are rendered.
    :param default_runtime: whether the service has a runtime of its own for jobs that name none.
    :param origins: path -> where it was written (``config.yaml:12``); a path that isn't in it takes
        that of the nearest one above.
    """
    _, problems = _read(job, complete=complete, default_runtime=default_runtime)
    return _violations(problems, origins or {})


def wire_job(
    job: Mapping[str, Any],
    *,
    complete: bool = True,
    default_runtime: bool = False,
    origins: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the body of a ``projects.jobs.create`` call.

    Keys are camelCase, enum values the API's, 64-bit integers texts; ``None`` is left out.  What
    it returns, it returns again unchanged when given it.  Parameters as for :func:`check_job`.

    :raises InvalidJobError: the job breaks rules; it has all of them.
    """
    model, problems = _read(job, complete=complete, default_runtime=default_runtime)
    violations = _violations(problems, origins or {})
    if violations:
        raise InvalidJobError(violations)
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, warnings=False)


def _read(
    job: Mapping[str, Any], *, complete: bool, default_runtime: bool
) -> tuple[Job, list[Problem]]:
    body, problems = read_keys(job, Job, templates=not complete)
    try:
        model = Job.model_validate(body)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            problems.append(Problem(_path(detail["loc"]), _message(detail)))
            _put(body, detail["loc"], Unread())
        # The rules are checked on the rest, so that all violations are told at once.
        model = Job.model_validate(body)
    values = model.model_dump(by_alias=True, exclude_none=True, warnings=False)
    broken = frozenset(path for each in problems for path in (each.path, *each.meant))
    problems.extend(
        job_problems(View(values, "", broken, complete=complete, default_runtime=default_runtime))
    )
    return model, problems


def _message(detail: Any) -> str:
    error = detail.get("ctx", {}).get("error")
    return str(error) if error is not None else str(detail["msg"])


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")


def _put(body: Any, location: tuple[int | str, ...], value: Any) -> None:
    for part in location[:-1]:
        body = body[part]
    body[location[-1]] = value


_LAST_PART = re.compile(r"(^|\.)[^.\[\]]+\Z|\[\d+\]\Z")


def _violations(problems: list[Problem], origins: Mapping[str, str]) -> list[Violation]:
    found = [
        Violation(
            problem.path,
            problem.message,
            (problem.cause and origins.get(problem.cause)) or _source(problem.path, origins),
        )
        for problem in problems
    ]
    return list(dict.fromkeys(found))


def _source(path: str, origins: Mapping[str, str]) -> str:
    while path not in origins:
        shorter = _LAST_PART.sub("", path)
        if shorter == path or not path:
            return ""
        path = shorter
    return origins[path]
