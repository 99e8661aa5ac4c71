"""Rules of a hyperparameter tuning job: ``trainingInput.hyperparameters``.

Source: ML v1 discovery, revision 20251213, ``HyperparameterSpec`` and ``ParameterSpec``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from airflow_aiptraining.core.job_scalars import Unread
from airflow_aiptraining.core.job_view import Problem, View

_LOG_SCALES = ("UNIT_LOG_SCALE", "UNIT_REVERSE_LOG_SCALE")
_MOST_DISCRETE_VALUES = 1000
_JOB_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}\Z")
_PARAMETER_NAME = re.compile(r"[^\s=-][^\s=]*\Z")


def tuning_problems(training: View) -> Iterator[Problem]:
    """Yield the broken rules of ``hyperparameters``, where the job has any.

    :param training: view of the ``trainingInput``.
    """
    if not training.given("hyperparameters"):
        return
    spec = training.inside("hyperparameters")
    if spec.missing("params"):
        yield Problem(
            spec.at("params"), "missing; a tuning job needs at least one parameter to tune"
        )
    for field, least in (("maxTrials", 1), ("maxParallelTrials", 1), ("maxFailedTrials", 0)):
        value = spec.get(field)
        if value is not None and value < least:
            yield Problem(spec.at(field), f"{value} is too small; it must be {least} or more")
    previous = spec.get("resumePreviousJobId")
    if previous and not _JOB_ID.match(previous):
        yield Problem(
            spec.at("resumePreviousJobId"),
            f"{previous!r} is not a job id: letters, digits and underscores, a letter first, at "
            "most 128 characters",
        )
    seen: dict[str, str] = {}
    for parameter in spec.each("params"):
        yield from _parameter_problems(parameter, spec.get("algorithm"))
        name = parameter.get("parameterName")
        if name and name in seen:
            yield Problem(
                parameter.at("parameterName"),
                f"{name!r} is already the name of {seen[name]}; names must differ",
            )
        elif name:
            seen[name] = parameter.path


def _parameter_problems(parameter: View, algorithm: str | None) -> Iterator[Problem]:
    if parameter.missing("parameterName"):
        yield Problem(parameter.at("parameterName"), "missing; every parameter needs a name")
    name = parameter.get("parameterName")
    if name and not _PARAMETER_NAME.match(name):
        yield Problem(
            parameter.at("parameterName"),
            f"{name!r} can't be passed as --<name>=<value>; write it without dashes in front, "
            "blanks and '='",
        )
    kind = parameter.get("type")
    if kind == "PARAMETER_TYPE_UNSPECIFIED" or parameter.missing("type"):
        yield Problem(
            parameter.at("type"), "missing; one of DOUBLE, INTEGER, CATEGORICAL, DISCRETE is needed"
        )
    elif kind in ("DOUBLE", "INTEGER"):
        yield from _range_problems(parameter, kind)
    elif kind == "CATEGORICAL":
        yield from _categorical_problems(parameter)
    elif kind == "DISCRETE":
        yield from _discrete_problems(parameter)
    for field, reader in (("categoricalValues", "CATEGORICAL"), ("discreteValues", "DISCRETE")):
        if kind not in (None, reader) and parameter.given(field):
            yield Problem(
                parameter.at(field), f"belongs to type {reader} only, and the type is {kind}"
            )
    if algorithm == "GRID_SEARCH" and kind == "DOUBLE":
        yield Problem(
            parameter.at("type"),
            "GRID_SEARCH takes INTEGER, CATEGORICAL and DISCRETE parameters only; make this one "
            "DISCRETE, or choose another algorithm",
        )


def _range_problems(parameter: View, kind: str) -> Iterator[Problem]:
    low, high = parameter.get("minValue"), parameter.get("maxValue")
    for field in ("minValue", "maxValue"):
        if parameter.missing(field):
            yield Problem(
                parameter.at(field),
                f"missing; a parameter of type {kind} needs minValue and maxValue",
                cause=parameter.at("type"),
            )
        value = parameter.get(field)
        if kind == "INTEGER" and value is not None and not value.is_integer():
            yield Problem(
                parameter.at(field), f"{value} is not whole, as type INTEGER needs its bounds"
            )
    if low is not None and high is not None and low > high:
        yield Problem(parameter.at("minValue"), f"{low} is greater than maxValue, {high}")
    if parameter.get("scaleType") in _LOG_SCALES and low is not None and low <= 0:
        yield _not_positive(parameter, "minValue", low)


def _categorical_problems(parameter: View) -> Iterator[Problem]:
    if parameter.missing("categoricalValues"):
        yield Problem(
            parameter.at("categoricalValues"),
            "missing; a parameter of type CATEGORICAL needs its categories",
            cause=parameter.at("type"),
        )
    for field in ("minValue", "maxValue"):
        if parameter.given(field):
            yield Problem(parameter.at(field), "must be unset for type CATEGORICAL; remove it")
    scale = parameter.get("scaleType")
    if scale not in (None, "NONE"):
        yield Problem(
            parameter.at("scaleType"),
            f"{scale} must be unset for type CATEGORICAL; categories have no scale",
        )


def _discrete_problems(parameter: View) -> Iterator[Problem]:
    path = parameter.at("discreteValues")
    if parameter.missing("discreteValues"):
        yield Problem(
            path,
            "missing; a parameter of type DISCRETE needs its values",
            cause=parameter.at("type"),
        )
    values = parameter.get("discreteValues") or []
    if len(values) > _MOST_DISCRETE_VALUES:
        yield Problem(path, f"{len(values)} values, at most {_MOST_DISCRETE_VALUES} are allowed")
    known = [value for value in values if not isinstance(value, Unread)]
    for before, after in pairwise(known):
        if after <= before:
            yield Problem(
                path, f"must be strictly increasing, but {after} comes after {before}; sort them"
            )
            break
    if parameter.get("scaleType") in _LOG_SCALES and known and min(known) <= 0:
        yield _not_positive(parameter, "discreteValues", min(known))


def _not_positive(parameter: View, field: str, value: float) -> Problem:
    scale = parameter.get("scaleType")
    return Problem(parameter.at(field), f"{value} is not positive, as scaleType {scale} needs")
