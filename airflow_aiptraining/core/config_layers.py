"""One source of a job's values: a config file's, an argument's, a run's params.

Keys are read in camelCase and snake_case, as Google's JSON parsers do, and kept in camelCase.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_aiptraining.core.config_file import child_path, read_document
from airflow_aiptraining.core.overridable import camel_case
from airflow_aiptraining.exceptions import InvalidJobError, Violation

TRAINING_INPUT = "trainingInput"
_USER_KEYS = re.compile(r"labels|trainingOutput")
"""Top-level fields whose keys are a user's own words, or that no config may set anyway."""


@dataclass(frozen=True)
class Layer:
    """One source of a job's values.

    :param name: what messages call it: a file's name, ``argument scale_tier`` …
    :param values: shaped like the API's Job, keys in camelCase; ``None`` is "not given".
    :param lines: 1-based line of a path, where the source is a file.
    :param notes: sentences for the task log.
    :param origins: for a layer made of several sources, the name of each path's; wins over
        ``name`` and ``lines``.
    """

    name: str
    values: dict[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)

    def origin(self, path: str) -> str:
        """Return where the value at ``path`` was written: ``config.yaml:12`` or a name."""
        for known in (path, *_parents(path)):
            if known in self.origins:
                return self.origins[known]
            if known in self.lines:
                return f"{self.name}:{self.lines[known]}"
        return self.name


def parse_config(data: bytes, name: str) -> Layer:
    """Return the layer that a config file's bytes hold.

    Every scalar stays text, whatever YAML would make of it; plain ``null``, ``~`` and nothing are
    ``None``.  ``jobId`` is dropped with a note: ids are made by the task.

    :param data: YAML or JSON, UTF-8; the JSON form of a Job, or a part of it.
    :param name: the file's name, for messages.
    :raises InvalidJobError: the text is no such mapping; all that can be told is told at once.
    """
    document = read_document(data, name)
    layer = _normalised(Layer(name, document.values, document.lines))
    if violations := list(_not_mappings(layer)):
        raise InvalidJobError(violations)
    notes = [
        f"{layer.origin(path)}: {path} is empty; it counts as not given"
        for path, value in leaves(layer.values)
        if value is None and not path.endswith("]")
    ]
    values = dict(layer.values)
    if values.pop("jobId", None) is not None:
        notes.append(f"{layer.origin('jobId')}: jobId is ignored; the task makes its job's id")
    return replace(layer, values=values, notes=tuple(notes))


def layer_from(name: str, values: Mapping[str, Any]) -> Layer:
    """Return a layer of Python values, its keys in the API's spelling.

    :param name: what messages call it, e.g. ``argument training_input``.
    :param values: Job-shaped: ``{"labels": {...}, "trainingInput": {...}}``, keys camelCase or
        snake_case.
    :raises InvalidJobError: a key is given in both spellings, or is no text, or there is no end
        to the nesting.
    """
    try:
        return _normalised(Layer(name, copy.deepcopy(dict(values))))
    except RecursionError:
        message = "it is nested too deep, or holds itself: this is no job's config"
        raise InvalidJobError([Violation("", message, name)]) from None


def render_layer(layer: Layer, render: Callable[[str], Any]) -> Layer:
    """Return the layer with each text value rendered; keys and structure stay.

    :param render: a template's result for one text, e.g. Airflow's, from an environment that
        gives text (a native one makes the number 2.1 of ``{{ "2.10" }}``).
    :raises InvalidJobError: ``render`` failed, or gave a list or mapping; one violation a value.
    """
    violations: list[Violation] = []

    def rendered(value: Any, path: str) -> Any:
        if isinstance(value, dict):
            return {key: rendered(item, child_path(path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [rendered(item, child_path(path, i)) for i, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        try:
            result = render(value)
        except Exception as error:  # a template may raise anything
            message = f"its template failed: {type(error).__name__}: {error}"
            violations.append(Violation(path, message, layer.origin(path)))
            return value
        if result is None or isinstance(result, str | float):
            return result
        if isinstance(result, bool | int):
            return str(result)
        message = (
            f"its template gave a {type(result).__name__}: a template may change a value, never "
            "the structure. Write the list or mapping in the file and render its items"
        )
        violations.append(Violation(path, message, layer.origin(path)))
        return value

    values = rendered(layer.values, "")
    if violations:
        raise InvalidJobError(violations)
    return replace(layer, values=values)


def _normalised(layer: Layer) -> Layer:
    """Return the layer with its keys, and the paths of its lines, in camelCase."""
    lines: dict[str, int] = {}
    violations: list[Violation] = []

    def walk(value: Any, old: str, new: str, is_user_keyed: bool) -> Any:
        if new and old in layer.lines:
            lines[new] = layer.lines[old]
        if isinstance(value, Mapping):
            spelled: dict[str, str] = {}
            result: dict[str, Any] = {}
            for key, item in value.items():
                if not isinstance(key, str):
                    message = f"a key must be text, not {key!r}"
                    violations.append(Violation(new, message, layer.origin(old)))
                    continue
                name = key if is_user_keyed else camel_case(key)
                old_path, path = child_path(old, key), child_path(new, name)
                if name in spelled:
                    message = f"given twice, as {spelled[name]} and {key}: keep one"
                    violations.append(Violation(path, message, layer.origin(old_path)))
                    continue
                spelled[name] = key
                user_keyed = is_user_keyed or bool(_USER_KEYS.fullmatch(path))
                result[name] = walk(item, old_path, path, user_keyed)
            return result
        if isinstance(value, list | tuple):
            return [
                walk(item, child_path(old, i), child_path(new, i), is_user_keyed)
                for i, item in enumerate(value)
            ]
        return value

    values = walk(layer.values, "", "", False)
    if violations:
        raise InvalidJobError(violations)
    return replace(layer, values=values, lines=lines)


def _not_mappings(layer: Layer) -> Iterator[Violation]:
    examples = {TRAINING_INPUT: "scaleTier: BASIC", "labels": "team: forecasting"}
    for key, example in examples.items():
        value = layer.values.get(key, {})
        if key == "labels" and value is None:
            continue
        if not isinstance(value, dict):
            found = {type(None): "nothing", list: "a list"}.get(type(value), "plain text")
            message = f"{key} holds {found}: it needs fields, indented under it ({example})"
            yield Violation(key, message, layer.origin(key))


def leaves(value: Any, path: str = "", *, lists_whole: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield each path that has no values under it, with its value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, child_path(path, key), lists_whole=lists_whole)
    elif isinstance(value, list) and value and not lists_whole:
        for index, item in enumerate(value):
            yield from leaves(item, child_path(path, index))
    else:
        yield path, value


def all_paths(value: Any, path: str) -> Iterator[str]:
    """Yield the path of a value and of everything in it."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from all_paths(item, child_path(path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from all_paths(item, child_path(path, index))


def _parents(path: str) -> Iterator[str]:
    while match := re.search(r"(\[\d+\]|\.[^.\[]*)$", path):
        path = path[: match.start()]
        yield path
