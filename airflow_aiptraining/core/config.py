"""Merges a job from its sources, and remembers where each value came from.

Lowest to highest: the config file, the operator's arguments, the DAG run's params.  Each is a
:class:`Layer`; :func:`merge` puts them together: mappings deep, lists (``args`` too) as a whole.
``None`` in a layer means "not given".  Keys are read in camelCase and snake_case, as Google's JSON
parsers do.  What the values mean, and which are legal, is :mod:`.job`'s business.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_aiptraining.core.config_file import child_path
from airflow_aiptraining.core.config_layers import (
    TRAINING_INPUT,
    Layer,
    all_paths,
    layer_from,
    leaves,
    parse_config,
    render_layer,
)
from airflow_aiptraining.core.overridable import is_overridable, normal_path
from airflow_aiptraining.exceptions import InvalidJobError, Violation

__all__ = [
    "Layer",
    "MergedJob",
    "append_args",
    "check",
    "finish",
    "layer_from",
    "merge",
    "params_layer",
    "parse_config",
    "render_layer",
]


@dataclass(frozen=True)
class MergedJob:
    """A job as merged from its layers, not checked yet.

    :param job: shaped like the API's Job; holds no ``None`` but inside lists.
    :param origins: path of each value, containers and list items too, but not of
        ``trainingInput`` and ``labels`` themselves → where it was written.
    :param notes: sentences for the task log, lowest layer first.
    """

    job: dict[str, Any]
    origins: Mapping[str, str]
    notes: tuple[str, ...] = ()


def params_layer(
    params: Mapping[str, Any], declared: Mapping[str, str], overridable: Sequence[str]
) -> Layer:
    """Return the layer of a DAG run's params.

    Only declared params are read: Airflow lets whoever triggers a run add others.  ``None``, empty
    text and an empty list mean "not given".  Params of one field come first, the object param
    ``training_input`` last.

    :param params: the run's params by name (``context["params"]``).
    :param declared: name → path in ``trainingInput`` that it sets; the empty path is the object's.
        :func:`airflow_aiptraining.params.declared_paths` reads it from the DAG's params.
    :param overridable: the paths that params may set; see :mod:`.overridable`.
    :raises InvalidJobError: a param sets a path that isn't overridable, or is no object.
    """
    violations: list[Violation] = []
    layers: list[Layer] = []
    for name, path in sorted(declared.items(), key=lambda item: item[1] == ""):
        value = _given(params.get(name))
        if value is None:
            continue
        origin = f"param {name}"
        if path:
            values: Any = value
            for key in reversed(normal_path(path).split(".")):
                values = {key: values}
        elif isinstance(value, Mapping):
            values = dict(value)
        else:
            message = f'it must be an object, e.g. {{"workerCount": 2}}, not {value!r}'
            violations.append(Violation(TRAINING_INPUT, message, origin))
            continue
        try:
            layer = layer_from(origin, {TRAINING_INPUT: values})
        except InvalidJobError as error:
            violations += error.violations
            continue
        violations += _not_overridable(layer, overridable)
        layers.append(layer)
    if violations:
        raise InvalidJobError(violations)
    job, origins = _overlaid(layers)
    return Layer("params", job, origins=origins)


def merge(layers: Sequence[Layer]) -> MergedJob:
    """Return the job that the layers make together; a later layer wins.

    Mappings merge deep, lists and ``args`` replace.  Machine types or counts without a scale tier
    mean ``CUSTOM``, and a note says so.

    :param layers: lowest first.
    """
    from airflow_aiptraining.core.machines import CUSTOM_FIELDS, implied_scale_tier

    job, origins = _overlaid(layers)
    notes = [note for layer in layers for note in layer.notes]
    training_input = job.get(TRAINING_INPUT)
    if isinstance(training_input, dict) and (tier := implied_scale_tier(training_input)):
        path = f"{TRAINING_INPUT}.scaleTier"
        training_input["scaleTier"] = tier
        cause = next(name for name in CUSTOM_FIELDS if training_input.get(name))
        origin = origins.get(child_path(TRAINING_INPUT, cause), "")
        origins[path] = f"{origin} (implied by {cause})"
        notes.append(f"{path} is not given: machine types and counts ({cause}) mean {tier}")
    return MergedJob(job, origins, tuple(notes))


def append_args(merged: MergedJob, extra: Sequence[Any], origin: str) -> MergedJob:
    """Return the job with ``extra`` after its ``args``.

    Where ``args`` isn't a list the job is returned as it is: :func:`check` tells that.

    :param extra: more arguments of the trainer, in order.
    :param origin: where they were written, e.g. ``argument extra_args``.
    """
    job = copy.deepcopy(merged.job)
    training_input = job.setdefault(TRAINING_INPUT, {})
    if not extra or not isinstance(training_input, dict):
        return merged
    args = training_input.setdefault("args", [])
    if not isinstance(args, list):
        return merged
    path = f"{TRAINING_INPUT}.args"
    origins = dict(merged.origins)
    origins[path] = ", ".join(filter(None, (merged.origins.get(path) if args else "", origin)))
    origins |= {child_path(path, len(args) + i): origin for i in range(len(extra))}
    args += extra
    return replace(merged, job=job, origins=origins)


def check(
    merged: MergedJob, *, complete: bool = True, default_runtime: bool = False
) -> list[Violation]:
    """Return every rule of the API that the job breaks, with where the value was written.

    :param complete: False for a part of a job (one file of several sources): what is missing is
        no violation then, and templates are left alone.
    :param default_runtime: whether the service has a runtime for jobs that name none.
    """
    from airflow_aiptraining.core.job import check_job

    return check_job(
        merged.job, complete=complete, default_runtime=default_runtime, origins=merged.origins
    )


def finish(merged: MergedJob, *, default_runtime: bool = False) -> dict[str, Any]:
    """Return the job as the API's JSON, ready to be sent.

    :param default_runtime: whether the service has a runtime for jobs that name none.
    :raises InvalidJobError: the job breaks rules; all of them are told.
    """
    from airflow_aiptraining.core.job import wire_job

    return wire_job(merged.job, default_runtime=default_runtime, origins=merged.origins)


def _not_overridable(layer: Layer, overridable: Sequence[str]) -> Iterator[Violation]:
    for full_path, value in leaves(layer.values, lists_whole=True):
        path = full_path.removeprefix(f"{TRAINING_INPUT}.")
        if value is None or full_path == TRAINING_INPUT or is_overridable(path, overridable):
            continue
        listed = [normal_path(known) for known in overridable]
        close = difflib.get_close_matches(path, listed, n=1, cutoff=0.8)
        hint = f" Did you mean {close[0]}?" if close else ""
        yield Violation(
            full_path,
            f"a run's params may not set it.{hint} If whoever triggers this DAG may choose it, "
            f"its author adds {path!r} to the operator's overridable list",
            layer.origin(full_path),
        )


def _overlaid(layers: Sequence[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    job: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def put(target: dict[str, Any], source: Mapping[str, Any], at: str, layer: Layer) -> None:
        for key, value in source.items():
            path = child_path(at, key)
            if _is_not_given(value):
                continue
            if key in target and not (isinstance(value, dict) and isinstance(target[key], dict)):
                forget(path)
                del target[key]
            if isinstance(value, dict):
                # Of these two the line says nothing of a field that is missing in them.
                if path not in (TRAINING_INPUT, "labels"):
                    origins.setdefault(path, layer.origin(path))
                put(target.setdefault(key, {}), value, path, layer)
            else:
                target[key] = copy.deepcopy(value)
                origins.update((each, layer.origin(each)) for each in all_paths(value, path))

    def forget(path: str) -> None:
        for known in [k for k in origins if k == path or k.startswith((f"{path}.", f"{path}["))]:
            del origins[known]

    for layer in layers:
        put(job, layer.values, "", layer)
    return job, origins


def _is_not_given(value: Any) -> bool:
    """Return whether it is None, or a mapping with nothing else in it."""
    if isinstance(value, dict) and value:
        return all(_is_not_given(item) for item in value.values())
    return value is None


def _given(value: Any) -> Any:
    """Return a param's value, None for what the trigger form sends for an empty field."""
    if isinstance(value, str):
        return value if value.strip() else None
    if isinstance(value, list):
        # The form makes one item of each line; the last lines are often empty.
        items = list(value)
        while items and items[-1] == "":
            items.pop()
        return items or None
    return None if value == {} else value
