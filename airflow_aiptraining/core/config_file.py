"""Reads the text of a config file: YAML (and so JSON), every scalar kept as text, with its line.

What a value means is the schema's business (:mod:`.job`); here ``runtimeVersion: 2.10`` stays
``"2.10"``, where gcloud crashes and a plain YAML loader makes it the number 2.1.  The text comes
from people and from repositories: it is read as events, never as objects, and size, depth and the
expansion of aliases are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from airflow_aiptraining.exceptions import InvalidJobError, Violation

MAX_BYTES = 1_048_576
"""A job with the API's limits used up (100 packages, 1,000 discrete values) has some 50 kB."""
MAX_DEPTH = 100
"""Levels of nesting, aliases expanded; the deepest field of the API is on the seventh."""
MAX_KEY = 256
"""Characters of a key; the longest of the API has 24, a label's 63."""
MAX_VALUES = 100_000
"""Values in the whole document, aliases expanded; a billion-laughs file has more."""

_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_STANDARD_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = {None, "!", *(_STANDARD_TAG + t for t in ("str", "int", "float", "bool", "timestamp"))}
_NULL_TAG = _STANDARD_TAG + "null"
_NULLS = {"", "~", "null", "Null", "NULL"}
_MERGE_KEY = "<<"
# YAML 1.1 §5.1, c-printable; a byte order mark inside the text is none.
_CONTROL_CHARACTER = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_WIDE_ENCODINGS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


@dataclass(frozen=True)
class ConfigDocument:
    """A config file's content, its keys as they are written.

    :param values: the mapping at its top; leaves are ``str`` or, for plain null, ``None``.
    :param lines: 1-based line of each value by its path (``trainingInput.args[2]``); of a
        mapping's value, the line of its key.
    """

    values: dict[str, Any]
    lines: Mapping[str, int]


@dataclass
class _Scalar:
    text: str | None
    line: int
    is_plain: bool = True


@dataclass
class _List:
    line: int
    items: list[_Node] = field(default_factory=list)


@dataclass
class _Map:
    line: int
    entries: dict[str, tuple[int, _Node]] = field(default_factory=dict)
    merged: list[_Map] = field(default_factory=list)


_Node = _Scalar | _List | _Map


@dataclass
class _Open:
    """A list or mapping whose end hasn't come yet."""

    node: _List | _Map
    anchor: str | None
    key: _Node | None = None  # of a mapping: the key that waits for its value


def child_path(path: str, key: str | int) -> str:
    """Return the path of one value inside ``path``: ``a.b`` for a key, ``a[0]`` for an index."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def read_document(data: bytes, name: str) -> ConfigDocument:
    """Return the one mapping that a config file holds.

    Anchors, aliases and merge keys (``<<``) work; explicit keys win over merged ones.

    :param data: the file's bytes: UTF-8, a byte order mark allowed, at most :data:`MAX_BYTES`.
    :param name: the file's name, for messages.
    :raises InvalidJobError: for anything else, with ``name:line`` as the violations' source.
    """
    reader = _Reader(name)
    text = _decoded(data, reader)
    top = reader.read(text)
    if top is None or (isinstance(top, _Scalar) and top.text is None):
        reader.fail("the file is empty: it needs a mapping with trainingInput", None)
    if not isinstance(top, _Map):
        kind = "a list" if isinstance(top, _List) else "plain text"
        reader.fail(
            f"the file holds {kind}: it needs a mapping with trainingInput (and labels) at its top",
            top.line,
        )
    values = reader.expanded(top)
    if reader.violations:
        raise InvalidJobError(reader.violations)
    return ConfigDocument(values, reader.lines)


def _decoded(data: bytes, reader: _Reader) -> str:
    if len(data) > MAX_BYTES:
        reader.fail(
            f"the file has {len(data):,} bytes; a job's config has at most {MAX_BYTES:,}. "
            "Is this the right file?",
            None,
        )
    wide = next((encoding for mark, encoding in _WIDE_ENCODINGS if data.startswith(mark)), None)
    if wide is None and data[:64].count(0) >= max(1, len(data[:64]) // 4):
        wide = "UTF-16 or binary"
    if wide is not None:
        reader.fail(f"the file is {wide}, not UTF-8: save it as UTF-8", None)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reader.fail(
            f"the file is not UTF-8 (byte 0x{data[error.start]:02x} at offset {error.start}): "
            "save it as UTF-8",
            data.count(b"\n", 0, error.start) + 1,
        )
    if found := _CONTROL_CHARACTER.search(text):
        column = found.start() - text.rfind("\n", 0, found.start())
        reader.fail(
            f"control character U+{ord(found[0]):04X} in column {column}: "
            'remove it, or write it as an escape inside double quotes ("\\x1b")',
            text.count("\n", 0, found.start()) + 1,
        )
    return text


class _Reader:
    """One reading of one file; collects what can be told together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.violations: list[Violation] = []
        self.lines: dict[str, int] = {}
        self._anchors: dict[str, _Node] = {}
        self._values = 0

    def note_violation(self, message: str, line: int | None, path: str = "") -> None:
        source = self.name if line is None else f"{self.name}:{line}"
        self.violations.append(Violation(path, message, source))

    def fail(self, message: str, line: int | None, path: str = "") -> NoReturn:
        self.note_violation(message, line, path)
        raise InvalidJobError(self.violations)

    def read(self, text: str) -> _Node | None:
        """Return the top value of the text; None where it has no document."""
        try:
            return self._compose(yaml.parse(text, Loader=_LOADER))
        except yaml.MarkedYAMLError as error:
            self.fail(*_syntax_error(error, text))
        except yaml.YAMLError as error:
            self.fail(f"not readable as YAML: {error}", None)

    def _compose(self, events: Iterator[Any]) -> _Node | None:
        top: _Node | None = None
        documents = 0
        stack: list[_Open] = []
        for event in events:
            line = event.start_mark.line + 1
            finished: _Node
            match event:
                case yaml.DocumentStartEvent():
                    documents += 1
                    if documents > 1:
                        self.fail(
                            "a second document starts here ('---'): a config file holds one job; "
                            "give each job its own file",
                            line,
                        )
                    continue
                case yaml.AliasEvent():
                    finished = self._aliased(event.anchor, line, stack)
                case yaml.ScalarEvent():
                    finished = self._scalar(event, line)
                    if event.anchor:
                        self._anchors[event.anchor] = finished
                case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                    is_list = isinstance(event, yaml.SequenceStartEvent)
                    self._check_tag(event.tag, "seq" if is_list else "map", line)
                    if len(stack) >= MAX_DEPTH:
                        self.fail(_TOO_DEEP, line)
                    stack.append(_Open(_List(line) if is_list else _Map(line), event.anchor))
                    continue
                case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                    closed = stack.pop()
                    finished = closed.node
                    self._take_merged(finished)
                    if closed.anchor:
                        self._anchors[closed.anchor] = finished
                case _:
                    continue
            self._count(1, line)
            if stack:
                self._put(stack[-1], finished)
            else:
                top = finished
        return top

    def _aliased(self, anchor: str | None, line: int, stack: Sequence[_Open]) -> _Node:
        if any(opened.anchor == anchor for opened in stack):
            self.fail(f"*{anchor} stands inside the value that &{anchor} names: no end to it", line)
        if anchor is None or anchor not in self._anchors:
            self.fail(f"*{anchor} names nothing: no &{anchor} comes before it", line)
        return self._anchors[anchor]

    def _scalar(self, event: Any, line: int) -> _Scalar:
        is_plain = bool(event.implicit[0])
        if event.tag == _NULL_TAG:
            return _Scalar(None, line, is_plain)
        if event.tag not in _TEXT_TAGS:
            self._refuse_tag(event.tag, line)
        is_null = is_plain and event.tag is None and event.value in _NULLS
        return _Scalar(None if is_null else event.value, line, is_plain)

    def _check_tag(self, tag: str | None, expected: str, line: int) -> None:
        if tag not in (None, "!", _STANDARD_TAG + expected):
            self._refuse_tag(tag, line)

    def _refuse_tag(self, tag: str | None, line: int) -> None:
        shown = (tag or "").replace(_STANDARD_TAG, "!!")
        self.note_violation(
            f"the tag {shown!r} is not read here: a config holds text, lists and mappings only. "
            "Remove the tag; quote the value if it is text that starts with '!'",
            line,
        )

    def _put(self, parent: _Open, value: _Node) -> None:
        if isinstance(parent.node, _List):
            parent.node.items.append(value)
        elif parent.key is None:
            parent.key = value
        else:
            key, parent.key = parent.key, None
            self._put_entry(parent.node, key, value)

    def _put_entry(self, mapping: _Map, key: _Node, value: _Node) -> None:
        if not isinstance(key, _Scalar):
            hint = '. Quote a template: "{{ … }}"' if isinstance(key, _Map) else ""
            kind = "list" if isinstance(key, _List) else "mapping"
            self.note_violation(f"a key must be plain text, not a {kind}{hint}", key.line)
        elif len(key.text or "") > MAX_KEY:
            self.note_violation(f"a key of {len(key.text or ''):,} characters", key.line)
        elif key.text is None:
            self.note_violation("this value has no key: write one before ':'", key.line)
        elif key.text == _MERGE_KEY and key.is_plain:
            sources = value.items if isinstance(value, _List) else [value]
            if not all(isinstance(source, _Map) for source in sources):
                self.note_violation("'<<' takes a mapping (*alias) or a list of them", key.line)
            mapping.merged += [source for source in sources if isinstance(source, _Map)]
        elif key.text in mapping.entries:
            self.note_violation(
                f"{key.text!r} is given twice, in lines {mapping.entries[key.text][0]} and "
                f"{key.line}: keep one",
                key.line,
            )
        else:
            mapping.entries[key.text] = (key.line, value)

    def _take_merged(self, node: _List | _Map) -> None:
        if isinstance(node, _Map):
            for source in node.merged:
                self._count(len(source.entries), node.line)
                for key, entry in source.entries.items():
                    node.entries.setdefault(key, entry)
            node.merged = []

    def _count(self, values: int, line: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            self.fail(
                f"more than {MAX_VALUES:,} values once aliases are expanded: this is no job's "
                "config",
                line,
            )

    def expanded(self, top: _Map) -> dict[str, Any]:
        """Return the tree as dicts, lists and text, aliases expanded; fills :attr:`lines`."""
        self._values = 0
        values: dict[str, Any] = self._plain(top, "", top.line, 0)
        return values

    def _plain(self, node: _Node, path: str, line: int, depth: int) -> Any:
        self._count(1, line)
        if path:
            self.lines[path] = line
        if isinstance(node, _Scalar):
            return node.text
        if depth > MAX_DEPTH:
            self.fail(_TOO_DEEP, line)
        if isinstance(node, _List):
            return [
                self._plain(item, child_path(path, index), item.line, depth + 1)
                for index, item in enumerate(node.items)
            ]
        return {
            key: self._plain(value, child_path(path, key), key_line, depth + 1)
            for key, (key_line, value) in node.entries.items()
        }


_TOO_DEEP = f"more than {MAX_DEPTH} levels of nesting: this is no job's config"


def _syntax_error(error: yaml.MarkedYAMLError, text: str) -> tuple[str, int | None]:
    """Return what to say of broken YAML, and in which line it is."""
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "broken syntax"
    if mark is None:
        return f"not readable as YAML: {problem}", None
    lines = text.splitlines()
    started = error.context_mark
    context = f" {error.context}" if error.context and error.context != problem else ""
    if started is not None and mark.line >= len(lines):
        # Something is never closed: where it opens is the place to look at.
        mark, problem = started, f"the file ends in the middle of something: {problem}"
    elif context and started is not None and started.line != mark.line:
        context += f" that starts in line {started.line + 1}"
    message = f"not readable as YAML (column {mark.column + 1}): {problem}{context}"
    at_fault = lines[mark.line] if mark.line < len(lines) else ""
    indent = at_fault[: len(at_fault) - len(at_fault.lstrip())]
    if "\t" in indent:
        message += ". The line is indented with a tab: YAML wants spaces"
    elif "{{" in at_fault or "{%" in at_fault:
        message += '. Quote a value with a template in it: "{{ … }}"'
    elif mark.column and at_fault[mark.column : mark.column + 1] in {"%", "@", "`"}:
        message += ". Quote a value that starts with % or @"
    return message, mark.line + 1
