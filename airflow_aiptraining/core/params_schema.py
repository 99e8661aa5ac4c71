"""Makes ``training_params.json``: the JSON schema of ``trainingInput`` from its models.

:mod:`airflow_aiptraining.params` reads the file, so that parsing a DAG needs no pydantic.  A test
holds it equal to the models; after a change of them, run::

    python -m airflow_aiptraining.core.params_schema
"""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel

FILE = Path(__file__).with_name("training_params.json")

# What a run's conf may hold for a scalar of the API: its own JSON type, or the text of it.
_NUMBER_TEXT = r"^[+-]?[0-9]+$"
_DURATION = r"^[0-9]+(\.[0-9]{1,9})?s$"


def training_input_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 7) of ``trainingInput``: keys in camelCase, none required."""
    from airflow_aiptraining.core.job_shapes import TrainingInput

    return _object_schema(TrainingInput)


def file_text() -> str:
    """Return what ``training_params.json`` must hold."""
    return json.dumps(training_input_schema(), indent=1, sort_keys=True) + "\n"


def _object_schema(model: type[BaseModel]) -> dict[str, Any]:
    properties = {
        info.alias or name: _schema(Annotated[(info.annotation, *info.metadata)])
        if info.metadata
        else _schema(info.annotation)
        for name, info in model.model_fields.items()
    }
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def _schema(annotation: Any) -> dict[str, Any]:
    """Return the schema of one field's type; null is always allowed and means "not given"."""
    from pydantic import BaseModel

    from airflow_aiptraining.core.job_scalars import WireFormat

    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        (inner,) = (a for a in get_args(annotation) if a is not type(None))
        return _schema(inner)
    if origin is list:
        items = _schema(get_args(annotation)[0])
        items["type"] = [name for name in items["type"] if name != "null"]
        if len(items["type"]) == 1:
            (items["type"],) = items["type"]
        return {"type": ["array", "null"], "items": items}
    if origin is Annotated:
        base, *metadata = get_args(annotation)
        if get_origin(base) is Literal:
            return {"type": ["string", "null"], "enum": [*get_args(base), None]}
        wire = next(m for m in metadata if isinstance(m, WireFormat))
        return _scalar_schema(wire.type, wire.format)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _object_schema(annotation)
    raise TypeError(f"no JSON schema is known for {annotation!r}")


def _scalar_schema(wire_type: str, wire_format: str) -> dict[str, Any]:
    match wire_type, wire_format:
        case ("integer", _) | ("string", "int64"):
            return {"type": ["integer", "string", "null"], "pattern": _NUMBER_TEXT}
        case "number", _:
            return {"type": ["number", "string", "null"]}
        case "boolean", _:
            return {"type": ["boolean", "null"]}
        case "string", "google-duration":
            return {"type": ["string", "null"], "pattern": _DURATION}
        case "string", _:
            return {"type": ["string", "null"]}
    raise TypeError(f"no JSON schema is known for {wire_type} {wire_format}")


if __name__ == "__main__":
    FILE.write_text(file_text(), encoding="utf-8")
