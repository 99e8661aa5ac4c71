"""Conditions that an author sets on a model's metrics, and the metrics file that they are put to.

A condition is a sentence such as ``accuracy >= 0.9``; a dotted name reaches into nested metrics
(``eval.auc > 0.8``).
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

#: A metrics file is read into memory; a larger one is something else, e.g. a log.
MAX_METRICS_BYTES = 1_000_000
#: At most so many figures go into XCom, a manifest and an asset event.
MAX_FIGURES = 100

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_SENTENCE = re.compile(
    rf"\s*(?P<metric>[^\s<>=!](?:[^<>=!]*[^\s<>=!])?)\s*(?P<sign>>=|<=|==|!=|>|<)\s*"
    rf"(?P<bound>{_NUMBER})\s*\Z"
)
_SIGN_AND_BOUND = re.compile(rf"\s*(?P<sign>>=|<=|==|!=|>|<)\s*(?P<bound>{_NUMBER})\s*\Z")


class Outcome(StrEnum):
    """What became of one condition."""

    HOLDS = "holds"
    #: The figure is there and isn't good enough: the model is to blame.
    FAILS = "fails"
    #: There is no such figure: the trainer or the condition is to blame, and no model would pass.
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Judgement:
    """A condition's outcome.

    :param reason: for people, with the number and the bound; empty where the condition holds.
    """

    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True)
class Condition:
    """One bound on one metric.

    :param metric: a top-level name, or a dotted path to a nested one.
    :param sign: ``>=``, ``<=``, ``==``, ``!=``, ``>`` or ``<``.
    :param bound: what the metric is compared with.
    """

    metric: str
    sign: str
    bound: float

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {self.bound:g}"

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Read a sentence such as ``accuracy >= 0.9``.

        :raises ValueError: it isn't one.
        """
        match = _SENTENCE.match(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(
                f"condition {text!r} can't be read: write a metric's name, one of "
                f"{' '.join(_COMPARISONS)} and a number, for example 'accuracy >= 0.9'."
            )
        return cls(match["metric"], match["sign"], float(match["bound"]))

    def judge(self, metrics: Mapping[str, Any], origin: str) -> Judgement:
        """Put the condition to a model's metrics.

        :param metrics: as read from JSON.
        :param origin: whose metrics they are, for the reason, e.g. ``metrics.json of job 'a_1'``.
        """
        try:
            value = look_up(metrics, self.metric)
        except KeyError:
            there = ", ".join(name for name, _ in figures(metrics)) or "no figures at all"
            return Judgement(
                Outcome.UNKNOWN,
                f"{self} can't be told: {origin} has no {self.metric!r} (it has: {there[:500]}).",
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return Judgement(
                Outcome.UNKNOWN,
                f"{self} can't be told: {self.metric} is {_shown(value)} in {origin}, "
                "which isn't a number.",
            )
        value = _float_or_infinity(value)
        if not math.isfinite(value):
            return Judgement(
                Outcome.FAILS,
                f"{self.metric} is {value} in {origin}; {self} was asked for. "
                "The model has probably diverged.",
            )
        if _COMPARISONS[self.sign](value, self.bound):
            return Judgement(Outcome.HOLDS)
        return Judgement(
            Outcome.FAILS, f"{self.metric} is {value!r} in {origin}; {self} was asked for."
        )


def parse_conditions(conditions: str | Mapping[str, Any] | Sequence[Any] | None) -> list[Condition]:
    """Read an author's conditions, all of which must hold.

    :param conditions: one sentence, a list of them, or a mapping of metric → sign and bound
        (``{"accuracy": ">= 0.9", "loss": ["> 0", "<= 0.3"]}``).
    :raises ValueError: one of them can't be read.
    """
    if conditions is None:
        return []
    if isinstance(conditions, str):
        return [Condition.parse(conditions)]
    if isinstance(conditions, Mapping):
        return [
            _of_mapping(metric, bound)
            for metric, bounds in conditions.items()
            for bound in ([bounds] if isinstance(bounds, (str, int, float)) else bounds)
        ]
    return [part for item in conditions for part in parse_conditions(item)]


def _of_mapping(metric: str, bound: Any) -> Condition:
    match = _SIGN_AND_BOUND.match(bound) if isinstance(bound, str) else None
    if match is None:
        raise ValueError(
            f"the condition on {metric!r} can't be read: {bound!r} isn't a sign and a number; "
            f"write for example {{{metric!r}: '>= 0.9'}}."
        )
    return Condition(metric, match["sign"], float(match["bound"]))


def parse_metrics(data: bytes) -> dict[str, Any]:
    """Read a metrics file: a JSON object.

    :param data: at most :data:`MAX_METRICS_BYTES` and one more, which tells that it is too large.
    :raises ValueError: it is too large, no JSON, or no object; the text completes "metrics.json …".
    """
    if len(data) > MAX_METRICS_BYTES:
        raise ValueError(
            f"is larger than {MAX_METRICS_BYTES:,} bytes; a metrics file is one small JSON object"
        )
    try:
        metrics = json.loads(data.decode("utf-8-sig"), parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error})") from None
    if not isinstance(metrics, dict):
        raise ValueError(
            f'holds a JSON {type(metrics).__name__}, not an object such as {{"accuracy": 0.93}}'
        )
    return metrics


def _integer(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        # Python reads no more than 4,300 digits; JSON may have them.
        return float(digits)


def look_up(metrics: Mapping[str, Any], path: str) -> Any:
    """Return the metric that ``path`` names: a key as it stands, else a dotted way to a nested one.

    :raises KeyError: there is none.
    """
    if path in metrics:
        return metrics[path]
    # The longest key first, so that {"a.b": {"c": 1}} answers to "a.b.c".
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        inner = metrics.get(".".join(parts[:length]))
        if isinstance(inner, Mapping):
            try:
                return look_up(inner, ".".join(parts[length:]))
            except KeyError:
                continue
    raise KeyError(path)


def figures(metrics: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the finite numbers among metrics under their dotted names, a bounded number of them.

    Text, lists and NaN (which JSON can't say) are left out.
    """
    found: list[tuple[str, float]] = []
    for name, value in _numbers(metrics, ""):
        if len(found) == MAX_FIGURES:
            break
        found.append((name, value))
    return found


def _numbers(metrics: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}.")
        elif (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and math.isfinite(_float_or_infinity(value))
        ):
            yield f"{prefix}{key}", value


def _float_or_infinity(value: int | float) -> int | float:
    """Return a number as it is, an infinity in place of an integer that no float can hold."""
    try:
        float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
