"""Reads the keys of a job: either spelling of each, unknown ones with advice, misplaced ones too.

Values are left as they are, but for what a message, list or map must be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin

from airflow_aiptraining.core.job_scalars import (
    Unread,
    key_in_words,
    kind_in_words,
    shown,
    unsendable,
)
from airflow_aiptraining.core.job_shapes import Job, Message
from airflow_aiptraining.core.job_view import Problem
from airflow_aiptraining.core.spelling import nearest_word

#: Set by the service, never by a client.  Source: "Output only" in the discovery document; etag is
#: sent back with patch, but a job to create has none.
_OUTPUT_FIELDS = frozenset(
    {
        "createTime",
        "endTime",
        "errorMessage",
        "etag",
        "explanationOutput",
        "jobPosition",
        "predictionOutput",
        "startTime",
        "state",
        "trainingOutput",
    }
)
_OTHER_JOBS = {
    "predictionInput": "batch prediction",
    "explanationInput": "batch explanation",
}
_NO_ENVIRONMENT = (
    "the API has none for environment variables: pass the value in args, or set it in the image"
)
#: Names that people bring from gcloud, from Vertex AI or from TensorFlow.
_FOREIGN_NAMES = {
    "env": _NO_ENVIRONMENT,
    "environment": _NO_ENVIRONMENT,
    "environmentVariables": _NO_ENVIRONMENT,
    "moduleName": "the module to run is pythonModule",
    "packages": "archives are listed in packageUris",
    "packagePath": "a source folder is the task's package_path",
    "stagingBucket": "it is the task's staging_bucket",
    "psConfig": "did you mean 'parameterServerConfig'?",
    "psCount": "did you mean 'parameterServerCount'?",
    "psType": "did you mean 'parameterServerType'?",
    "timeout": "a job's time is limited by scheduling.maxRunningTime",
}
_TEMPLATE = re.compile(r"\{[{%#]")


def read_keys(
    job: Any, model: type[Message], *, templates: bool
) -> tuple[dict[str, Any], list[Problem]]:
    """Return a job with the API's keys only, and what is wrong with its keys and containers.

    :param job: what should be a mapping of the fields of ``model``.
    :param templates: whether texts with Jinja in them are marked as not to be judged.
    :return: a copy; keys in camelCase, nulls, unknown keys and wrong containers dropped.
    """
    reader = _Reader(templates)
    return reader.message(job, model, ""), reader.problems


class _Field(NamedTuple):
    """How a field's value is built.

    :param kind: ``message``, ``list``, ``map`` or ``scalar``.
    :param inner: the message's class, or the type of the list's items.
    """

    kind: str
    inner: Any = None


@cache
def fields_of(model: type[Message]) -> Mapping[str, _Field]:
    """Return the fields of a message by their keys on the wire."""
    return {str(field.alias): _field(field.annotation) for field in model.model_fields.values()}


@cache
def _keys_of(model: type[Message]) -> Mapping[str, str]:
    """Return both spellings of each key, with the one on the wire."""
    keys = {name: str(field.alias) for name, field in model.model_fields.items()}
    return keys | {key: key for key in keys.values()}


def _field(annotation: Any) -> _Field:
    inner = next((each for each in get_args(annotation) if each is not type(None)), annotation)
    if not _is_optional(annotation):
        inner = annotation
    if isinstance(inner, type) and issubclass(inner, Message):
        return _Field("message", inner)
    if get_origin(inner) is list:
        return _Field("list", get_args(inner)[0])
    if get_origin(inner) is dict:
        return _Field("map")
    return _Field("scalar")


def _is_optional(annotation: Any) -> bool:
    return type(None) in get_args(annotation)


class _Reader:
    def __init__(self, templates: bool) -> None:
        self.templates = templates
        self.problems: list[Problem] = []

    def message(self, raw: Any, model: type[Message], path: str) -> dict[str, Any]:
        if not isinstance(raw, Mapping):
            self.problems.append(
                Problem(path, f"a mapping of fields is expected, not {_shown(raw)}")
            )
            return {}
        keys, fields = _keys_of(model), fields_of(model)
        written: dict[str, str] = {}
        read: dict[str, Any] = {}
        for raw_key, value in raw.items():
            key = keys.get(raw_key) if isinstance(raw_key, str) else None
            name = key or key_in_words(raw_key)
            at = f"{path}.{name}" if path else name
            if key is None:
                self.problems.append(_unknown(name, model, path))
            elif key in written:
                self.problems.append(
                    Problem(at, f"given twice, as {written[key]!r} and as {raw_key!r}; keep one")
                )
            else:
                written[key] = str(raw_key)
                if value is not None and not (model is Job and self._foreign(key)):
                    self._value(read, key, value, fields[key], at)
        return read

    def _foreign(self, key: str) -> bool:
        if key in _OUTPUT_FIELDS:
            self.problems.append(Problem(key, "set by the service; remove it from what you submit"))
            return True
        if key in _OTHER_JOBS:
            self.problems.append(
                Problem(key, f"is for {_OTHER_JOBS[key]} jobs; only training jobs are submitted")
            )
            return True
        return False

    def _value(self, into: dict[str, Any], key: str, value: Any, field: _Field, at: str) -> None:
        if field.kind == "message":
            into[key] = self.message(value, field.inner, at)
        elif field.kind == "map":
            into[key] = self._map(value, at)
        elif field.kind == "list":
            into[key] = self._list(value, field.inner, at)
        else:
            into[key] = self._scalar(value, at)

    def _scalar(self, value: Any, at: str) -> Any:
        if isinstance(value, str) and (message := unsendable(value)):
            self.problems.append(Problem(at, message))
            return Unread()
        if self.templates and isinstance(value, str) and _TEMPLATE.search(value):
            return Unread(value)
        return value

    def _map(self, raw: Any, path: str) -> dict[str, Any]:
        if not isinstance(raw, Mapping):
            self.problems.append(Problem(path, f"a mapping is expected, not {_shown(raw)}"))
            return {}
        read = {}
        for key, value in raw.items():
            name = key_in_words(key)
            at = f"{path}.{name}"
            if not isinstance(key, str):
                self.problems.append(
                    Problem(at, f"the key must be text; write it in quotes: '{name}'")
                )
            elif message := unsendable(key):
                # Where it was written is known by the key as it stands.
                self.problems.append(Problem(at, f"the key {message}", cause=f"{path}.{key}"))
            elif value is not None:
                read[key] = self._scalar(value, at)
        return read

    def _list(self, raw: Any, items: Any, path: str) -> list[Any]:
        if not isinstance(raw, list | tuple):
            advice = ""
            if isinstance(raw, str) and _TEMPLATE.search(raw):
                advice = "; a template gives one text: write a list, with templates in its items"
            elif isinstance(raw, str) and raw:
                advice = f"; write it as {raw.split()!r}"
            self.problems.append(Problem(path, f"a list is expected, not {_shown(raw)}{advice}"))
            return []
        read: list[Any] = []
        for index, item in enumerate(raw):
            at = f"{path}[{index}]"
            if item is None:
                self.problems.append(Problem(at, "is null; remove it, or write '' for empty text"))
                read.append(Unread() if not _is_message(items) else {})
            elif _is_message(items):
                read.append(self.message(item, items, at))
            else:
                read.append(self._scalar(item, at))
        return read


def _is_message(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Message)


def _shown(value: Any) -> str:
    return kind_in_words(value) if value is None else shown(value)


def _unknown(key: str, model: type[Message], path: str) -> Problem:
    """Return what to say of a key that a message doesn't have."""
    at = f"{path}.{key}" if path else key
    camel = re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), key)
    if camel in _FOREIGN_NAMES:
        return Problem(at, f"unknown field; {_FOREIGN_NAMES[camel]}")
    places = [place for place in _places().get(camel, ()) if place.rpartition(".")[0] != path]
    if places:
        first, *others = places
        also = f" (or {', '.join(others)})" if others else ""
        return Problem(at, f"unknown field here; it belongs in {first}{also}", meant=tuple(places))
    nearest = nearest_word(camel, fields_of(model))
    if not nearest:
        return Problem(at, "unknown field; the API has no such field")
    meant = f"{path}.{nearest}" if path else nearest
    return Problem(at, f"unknown field; did you mean {nearest!r}?", meant=(meant,))


@cache
def _places() -> Mapping[str, tuple[str, ...]]:
    """Return where in a job to submit each key may stand."""
    places: dict[str, tuple[str, ...]] = {}

    def visit(model: type[Message], path: str) -> None:
        for key, (kind, inner) in fields_of(model).items():
            if model is Job and key in {*_OUTPUT_FIELDS, *_OTHER_JOBS}:
                continue
            at = f"{path}.{key}" if path else key
            places[key] = (*places.get(key, ()), at)
            if kind == "message":
                visit(inner, at)
            elif kind == "list" and _is_message(inner):
                visit(inner, f"{at}[]")

    visit(Job, "")
    # Masters first: most jobs have no other role.
    return {
        key: tuple(sorted(each, key=lambda place: "masterConfig" not in place))
        for key, each in places.items()
    }
