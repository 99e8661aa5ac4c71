"""Ready params for a DAG's trigger form: what a run may change of its training job.

::

    with DAG("retrain", params=training_params(defaults={"args": ["--epochs", "10"]})):
        AIPTrainingJobOperator(task_id="train", config="config.yaml", ...)

The form then shows one field for each thing that people change (a list for ``scale_tier``, a
number for ``worker_count``, one line an argument for ``args``) and, last, the object
``training_input`` for all the rest.  ``airflow dags trigger --conf`` and the REST API take the same
names.  An empty field (``null``) means "as configured".  ``training_input`` wins over the
single fields.

How the operator knows them: each param's JSON schema carries ``x-training-input``, the path in
``trainingInput`` that it sets, or the empty path for the object.  So a param of the author's own
takes part as well, under any name::

    params={"workers": Param(2, type="integer", maximum=4, **{"x-training-input": "workerCount"})}

An object param named ``training_input`` needs no such mark.  What a run may set at all is the
operator's ``overridable``; a param for another path fails the task with the reason.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import Param

from airflow_aiptraining.core.machines import CLOUD_TPU, LEGACY_MACHINES, N1_MACHINE_TYPES
from airflow_aiptraining.core.overridable import (
    DEFAULT_OVERRIDABLE,
    is_overridable,
    normal_path,
    snake_case,
)
from airflow_aiptraining.core.spelling import nearest_word

EXTENSION = "x-training-input"
"""Key in a param's JSON schema: the path in ``trainingInput`` that the param sets."""
OBJECT_PARAM = "training_input"

_SCHEMA_FILE = Path(__file__).with_name("core") / "training_params.json"
_COUNT = "How many machines."
_MACHINE = "Machine type; only with scaleTier CUSTOM."
_ACCELERATOR = "Accelerators of each machine."
_TRIALS = "Of a tuning job."
_SECONDS = "Seconds with an s: 3600s."

# What the form shows as a field of its own, in its order; the rest goes into the object.
_FORM: Mapping[str, str] = {
    "args": "Arguments of the trainer, one a line; they replace the configured ones.",
    "scaleTier": "Machines of the job; CUSTOM takes the machine types below.",
    "region": "Where the job runs, e.g. us-central1.",
    "masterType": _MACHINE,
    "masterConfig.acceleratorConfig.type": _ACCELERATOR,
    "masterConfig.acceleratorConfig.count": _ACCELERATOR,
    "workerType": _MACHINE,
    "workerCount": _COUNT,
    "workerConfig.acceleratorConfig.type": _ACCELERATOR,
    "workerConfig.acceleratorConfig.count": _ACCELERATOR,
    "parameterServerType": _MACHINE,
    "parameterServerCount": _COUNT,
    "evaluatorType": _MACHINE,
    "evaluatorCount": _COUNT,
    "hyperparameters.maxTrials": _TRIALS,
    "hyperparameters.maxParallelTrials": _TRIALS,
    "hyperparameters.maxFailedTrials": _TRIALS,
    "scheduling.maxRunningTime": f"The service stops the job after it. {_SECONDS}",
    "scheduling.maxWaitTime": f"The job is given up if it can't start in it. {_SECONDS}",
    "scheduling.priority": "0 to 1000; the higher goes first.",
    "scheduling.strategy": "LOW_COST: spare capacity.",
}
_LEAST = {"hyperparameters.maxTrials": 1, "hyperparameters.maxParallelTrials": 1}
_MOST = {"scheduling.priority": 1000}
_EMPTY = "as configured"


def training_params(
    overridable: Sequence[str] = DEFAULT_OVERRIDABLE,
    defaults: Mapping[str, Any] | None = None,
    *,
    choices: Mapping[str, Sequence[str]] | None = None,
    limits: Mapping[str, int] | None = None,
    prefix: str = "",
    section: str = "Training job",
) -> dict[str, Param]:
    """Return params for the trigger form, one for each overridable field that people change.

    Paths, here and below, are those of ``trainingInput``: ``workerCount``,
    ``scheduling.maxRunningTime``; in snake_case too.

    :param overridable: give the operator the same.  A path with others under it
        (``scheduling``) stands for all of them.  A single field that the form has no place for
        (``serviceAccount``) gets one.
    :param defaults: path, or ``training_input`` for the object → what the form is filled with.
        It is set in scheduled runs too, and wins over the config and the operator's arguments.
    :param choices: path → the only values that a run may choose, e.g. machine types.
    :param limits: path → the largest number that a run may choose, e.g. ``{"workerCount": 8}``.
    :param prefix: put before each name, for a DAG with several training jobs or a name taken.
    :param section: heading in the form.
    :return: name → param, to be unpacked into ``DAG(params={**training_params(), ...})``.
    :raises ValueError: a path is no field of ``trainingInput``.
    """
    schema = json.loads(_SCHEMA_FILE.read_text(encoding="utf-8"))
    fields = dict(_fields(schema))
    by_name = {_param_name(path): path for path in fields}
    wanted = [_known(path, fields, by_name, "overridable") for path in overridable]
    for path, values in _by_path(choices, fields, by_name, "choices").items():
        _narrow(fields[path], path, values)
    for path, most in _by_path(limits, fields, by_name, "limits").items():
        if "integer" not in fields[path]["type"]:
            raise ValueError(f"limits: {path!r} is no whole number")
        fields[path].pop("pattern", None)
        fields[path].update(type=["integer", "null"], maximum=most)
    filled = dict(defaults or {})
    whole = filled.pop(OBJECT_PARAM, {})
    values_by_path = _by_path(filled, fields, by_name, "defaults")

    params: dict[str, Param] = {}
    in_form = [path for path in _FORM if is_overridable(path, wanted)]
    single = [path for path in wanted if path not in _FORM and _is_single(fields[path])]
    for path in dict.fromkeys([*in_form, *single, *values_by_path]):
        if not is_overridable(path, wanted):
            raise ValueError(f"defaults: {path!r} is not in overridable; add it there")
        if not _is_single(fields[path]):
            raise ValueError(f"defaults: give {path!r} inside {OBJECT_PARAM!r}")
        params[prefix + _param_name(path)] = Param(
            values_by_path.get(path),
            description=_FORM.get(path, ""),
            schema={
                **_form_schema(path, fields[path]),
                "title": path,
                "section": section,
                EXTENSION: path,
            },
        )
    params[prefix + OBJECT_PARAM] = Param(
        copy.deepcopy(whole),
        description="Any other field that this DAG lets a run change, as in the API: "
        + ", ".join(wanted),
        schema={
            **_reduced(schema, "", wanted),
            "title": "trainingInput",
            "section": section,
            EXTENSION: "",
        },
    )
    return params


def declared_paths(*params: Mapping[str, Any]) -> dict[str, str]:
    """Return which params take part in a training job, and the path that each sets.

    What a run adds to its conf under undeclared names is in none of these mappings.

    :param params: the params that a DAG and its task declare (``dag.params``, ``task.params``);
        a later one wins.
    :return: name → path in ``trainingInput``, empty for the object param.
    """
    declared: dict[str, str] = {}
    for mapping in params:
        for name, param in mapping.items():
            schema = getattr(param, "schema", None) or {}
            path = schema.get(EXTENSION, "" if name == OBJECT_PARAM else None)
            if isinstance(path, str):
                declared[name] = normal_path(path) if path else ""
    return declared


def _fields(schema: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and schema of every field, down to lists."""
    for key, field in schema.get("properties", {}).items():
        path = f"{at}.{key}" if at else key
        yield path, field
        yield from _fields(field, path)


def _param_name(path: str) -> str:
    """Return a path's name in the form: ``masterConfig.imageUri`` → ``master_image_uri``."""
    return snake_case(path.replace("Config.", "."))


def _known(path: str, fields: Mapping[str, Any], by_name: Mapping[str, str], argument: str) -> str:
    found = by_name.get(path, normal_path(path))
    if found not in fields:
        nearest = nearest_word(found, fields)
        advice = f"; did you mean {nearest!r}?" if nearest else ""
        raise ValueError(f"{argument}: {path!r} is no field of trainingInput{advice}")
    return found


def _by_path(
    values: Mapping[str, Any] | None,
    fields: Mapping[str, Any],
    by_name: Mapping[str, str],
    argument: str,
) -> dict[str, Any]:
    return {_known(path, fields, by_name, argument): v for path, v in (values or {}).items()}


def _narrow(field: dict[str, Any], path: str, values: Sequence[str]) -> None:
    unknown = set(values) - set(field.get("enum", values))
    if unknown or "string" not in field["type"]:
        raise ValueError(f"choices: {path!r} can't have {', '.join(sorted(unknown or values))}")
    field["enum"] = [*values, None]


def _is_single(field: Mapping[str, Any]) -> bool:
    """Return whether one form field can show it: a scalar, or a list of texts."""
    if "array" in field["type"]:
        return bool(field["items"]["type"] == "string")
    return "object" not in field["type"]


def _form_schema(path: str, field: Mapping[str, Any]) -> dict[str, Any]:
    kinds = set(field["type"])
    if "integer" in kinds:
        number: dict[str, Any] = {
            "type": ["integer", "null"],
            "minimum": _LEAST.get(path, 0),
            "maximum": field.get("maximum", _MOST.get(path)),
        }
        return {key: value for key, value in number.items() if value is not None}
    schema = copy.deepcopy(dict(field))
    if "enum" in schema:
        # The form shows a list only for an enum at the top, and null must be in it to be legal.
        schema["enum"] = [v for v in schema["enum"] if not str(v).endswith("_UNSPECIFIED")]
        schema["values_display"] = {"null": _EMPTY}
    elif path.endswith("Type") and "Config" not in path:
        # A suggestion and no enum: services know more types than the ML v1 documentation.
        schema["examples"] = [*N1_MACHINE_TYPES, *LEGACY_MACHINES, CLOUD_TPU]
    return schema


def _reduced(schema: dict[str, Any], at: str, overridable: Sequence[str]) -> dict[str, Any]:
    """Return an object's schema with only the fields that a run may set."""
    properties: dict[str, Any] = {}
    for key, field in schema["properties"].items():
        path = f"{at}.{key}" if at else key
        if "properties" in field:
            inner = _reduced(field, path, overridable)
            if inner["properties"]:
                properties[key] = inner
        elif is_overridable(path, overridable):
            properties[key] = field
    return {**schema, "properties": properties}
