"""The filter language of ``jobs.list`` and of Cloud Logging's ``entries:list``.

One grammar serves both::

    filter     = sequence { OR sequence }
    sequence   = factor { [AND] factor }             AND binds stronger than OR
    factor     = [NOT | -] ( "(" filter ")" | comparison )
    comparison = field (":" | "=" | "!=" | "<" | "<=" | ">" | ">=") value
    value      = word | "quoted text"                a word may end in * (any ending)

Sources: ML v1 discovery, ``projects.jobs.list.filter`` (``jobId:rnn* AND state:FAILED``); Cloud
Logging query language, as far as gcloud and log readers send it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<operator><=|>=|!=|=|<|>|:)
      | (?P<bracket>[()])
      | (?P<word>(?:"(?:[^"\\]|\\.)*"|[^\s()"=<>:!])+)
    )""",
    re.VERBOSE,
)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
MAX_LENGTH = 20_000
"""Characters of a filter; Cloud Logging's limit."""
_MAX_DEPTH = 50

Lookup = Callable[[str], str | None]
"""Field path → its value as text; None where the resource has no such field."""
Compare = Callable[[str, str], int | None]
"""Order of two texts (negative, 0, positive); None where they can't be ordered."""


class FilterError(ValueError):
    """A filter can't be read; the text says where."""


@dataclass(frozen=True)
class Comparison:
    """``field operator value``.

    :param is_prefix: the value ended in ``*`` outside quotes, which was taken off.
    """

    field: str
    operator: str
    value: str
    is_prefix: bool = False


@dataclass(frozen=True)
class Not:
    """The opposite of *part*."""

    part: Node


@dataclass(frozen=True)
class And:
    """All of *parts*; of none: everything."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Or:
    """One of *parts* at least."""

    parts: tuple[Node, ...]


Node = Comparison | Not | And | Or


def parse(text: str) -> Node:
    """Return the tree of a filter; an empty text matches everything.

    :raises FilterError: it breaks the grammar above.
    """
    if len(text) > MAX_LENGTH:
        raise FilterError(f"a filter may have {MAX_LENGTH} characters, this one has {len(text)}")
    tokens = _tokens(text)
    if not tokens:
        return And(())
    parser = _Parser(tokens)
    node = parser.either(0)
    parser.expect_end()
    return node


def matches(
    node: Node, lookup: Lookup, compare: Compare | None = None, *, has_substring: bool = False
) -> bool:
    """Tell whether a resource passes.

    A field that the resource doesn't have matches no comparison, ``!=`` excepted.

    :param compare: order of two values for ``<`` and its like; text order if None.
    :param has_substring: whether ``:`` means "contains", letters of both cases being equal, as in
        Cloud Logging; else it means ``=``.
    """
    match node:
        case And(parts):
            return all(matches(p, lookup, compare, has_substring=has_substring) for p in parts)
        case Or(parts):
            return any(matches(p, lookup, compare, has_substring=has_substring) for p in parts)
        case Not(part):
            return not matches(part, lookup, compare, has_substring=has_substring)
        case Comparison():
            found = lookup(node.field)
            if has_substring and node.operator == ":" and found is not None:
                return node.value.lower() in found.lower()
            return _holds(node, found, compare)


def required_values(
    node: Node, field: str, operators: Collection[str] = (":", "=")
) -> frozenset[str] | None:
    """Return the values of which *field* must have one for the filter to match.

    Lets a caller look only where a match can be.

    :param operators: those that ask for the value as a whole.
    :return: None: it may have any.
    """
    match node:
        case Comparison(name, operator, value, False) if name == field and operator in operators:
            return frozenset({value})
        case And(parts):
            found = [
                v for part in parts if (v := required_values(part, field, operators)) is not None
            ]
            return frozenset.intersection(*found) if found else None
        case Or(parts):
            each = [required_values(part, field, operators) for part in parts]
            known = [values for values in each if values is not None]
            return frozenset().union(*known) if len(known) == len(each) else None
    return None


def bounds(node: Node, field: str) -> tuple[str | None, str | None]:
    """Return a lower and an upper bound, both inclusive, that *field* must keep to match.

    Values are compared as text: of use only for texts of one form, such as timestamps that the
    caller has made equal in width.

    :return: None for a side without bound.
    """
    match node:
        case Comparison(name, operator, value, False) if name == field:
            low = value if operator in {">", ">=", "="} else None
            high = value if operator in {"<", "<=", "="} else None
            return low, high
        case And(parts):
            each = [bounds(part, field) for part in parts]
            return (
                max((low for low, _ in each if low is not None), default=None),
                min((high for _, high in each if high is not None), default=None),
            )
        case Or(parts):
            each = [bounds(part, field) for part in parts]
            lows = [low for low, _ in each if low is not None]
            highs = [high for _, high in each if high is not None]
            return (
                min(lows) if len(lows) == len(each) else None,
                max(highs) if len(highs) == len(each) else None,
            )
    return None, None


def replace_values(node: Node, field: str, change: Callable[[str], str]) -> Node:
    """Return the tree with *change* applied to each value that *field* is compared with."""
    match node:
        case Comparison(name, operator, value, is_prefix) if name == field:
            return Comparison(name, operator, change(value), is_prefix)
        case Not(part):
            return Not(replace_values(part, field, change))
        case And(parts):
            return And(tuple(replace_values(part, field, change) for part in parts))
        case Or(parts):
            return Or(tuple(replace_values(part, field, change) for part in parts))
    return node


def _holds(comparison: Comparison, found: str | None, compare: Compare | None) -> bool:
    operator, value = comparison.operator, comparison.value
    if found is None:
        return operator == "!="
    if operator in {"=", ":", "!="}:
        same = found.startswith(value) if comparison.is_prefix else found == value
        return same != (operator == "!=")
    order = compare(found, value) if compare else (found > value) - (found < value)
    if order is None:
        return False
    return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[operator]


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, position = [], 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise FilterError(
                f"can't read it from character {position + 1} on: {text[position:]!r}"
            )
        tokens.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    return tokens


class _Parser:
    """Recursive descent over the tokens; one method a rule."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._next = 0

    def either(self, depth: int) -> Node:
        parts = [self.sequence(depth)]
        while self._accept("word", "OR"):
            parts.append(self.sequence(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def sequence(self, depth: int) -> Node:
        parts = [self.factor(depth)]
        while True:
            if self._accept("word", "AND"):
                parts.append(self.factor(depth))
            elif self._peek() in {("word", "OR"), ("bracket", ")"), ("end", "")}:
                return parts[0] if len(parts) == 1 else And(tuple(parts))
            else:
                parts.append(self.factor(depth))

    def factor(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise FilterError(f"more than {_MAX_DEPTH} levels of parentheses and NOT")
        if self._accept("word", "NOT") or self._accept("word", "-"):
            return Not(self.factor(depth + 1))
        if self._accept("bracket", "("):
            node = self.either(depth + 1)
            if not self._accept("bracket", ")"):
                raise FilterError(f"expected ')' {self._where()}")
            return node
        return self.comparison()

    def comparison(self) -> Node:
        kind, name = self._take()
        if kind != "word":
            raise FilterError(f"expected a field, found {name!r}")
        negated = name.startswith("-")
        kind, operator = self._peek()
        if kind != "operator":
            raise FilterError(
                f"expected :, = or another comparison after {name!r}, {self._where()}; "
                "a search for bare words isn't supported"
            )
        self._take()
        kind, value = self._peek()
        if kind != "word":
            raise FilterError(f"expected a value after {name}{operator}, {self._where()}")
        self._take()
        # An unquoted value goes on through colons: a time, a resource name.
        while self._peek() == ("operator", ":") and not value.startswith('"'):
            value += self._take()[1]
            if self._peek()[0] == "word":
                value += self._take()[1]
        is_prefix = not value.endswith('"') and value.endswith("*")
        node = Comparison(
            _unquote(name.removeprefix("-")),
            operator,
            _unquote(value.removesuffix("*") if is_prefix else value),
            is_prefix,
        )
        return Not(node) if negated else node

    def expect_end(self) -> None:
        if self._peek()[0] != "end":
            raise FilterError(f"expected its end {self._where()}")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._next] if self._next < len(self._tokens) else ("end", "")

    def _take(self) -> tuple[str, str]:
        token = self._peek()
        self._next += 1
        return token

    def _accept(self, kind: str, text: str) -> bool:
        if self._peek() == (kind, text):
            self._next += 1
            return True
        return False

    def _where(self) -> str:
        kind, text = self._peek()
        return "at its end" if kind == "end" else f"found {text!r}"


def _unquote(word: str) -> str:
    return _QUOTED.sub(lambda match: re.sub(r"\\(.)", r"\1", match[1]), word)
