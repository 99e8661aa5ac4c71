"""The scalar types of the Job's fields: how each is read, and how it goes over the wire.

YAML and command lines give text, Python code gives numbers: both are read.  What a type can't hold
without a change of meaning is refused with advice, a number where the API wants text above all:
``runtimeVersion: 2.10`` written in Python is the number 2.1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    GetCoreSchemaHandler,
    PlainSerializer,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import core_schema

from airflow_aiptraining.core.spelling import enum_value


class Unread(str):
    """Text in the place of a value that isn't judged now: reported already, or still a template.

    Validators let it through, so that the other rules of a job can be checked all the same.
    """

    __slots__ = ()


@dataclass(frozen=True)
class WireFormat:
    """A scalar's ``type`` and ``format`` in the discovery document; the contract test compares."""

    type: str
    format: str = ""


def _reading(read: Callable[[Any], Any]) -> WrapValidator:
    def validate(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
        return value if isinstance(value, Unread) else read(value)

    return WrapValidator(validate)


class _EnumValue:
    """Reads a ``Literal`` in any spelling that gcloud or the API has for its values."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        values = get_args(source)

        def validate(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
            if isinstance(value, Unread):
                return value
            if not isinstance(value, str):
                raise ValueError(f"one of {', '.join(values)} is expected, not {shown(value)}")
            return enum_value(value, values)

        return core_schema.no_info_wrap_validator_function(validate, handler(source))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        word = str(value).lower()
        raise ValueError(f"text is expected, not {word}; write it in quotes: '{word}'")
    if isinstance(value, int):
        if _is_long(value):
            raise ValueError(f"text is expected, not {shown(value)}; write it in quotes")
        raise ValueError(f"text is expected, not the number {value}; write it in quotes: '{value}'")
    if isinstance(value, float):
        raise ValueError(
            f"text is expected, not the number {value}; write it in quotes, as it was meant "
            f"(as a number, 2.10 is read as 2.1): '{value}'"
        )
    raise ValueError(f"text is expected, not {kind_in_words(value)}")


_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9_]*)\Z")
_OCTAL_LIKE = re.compile(r"[+-]?0[0-9_]+\Z")


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, str) and _OCTAL_LIKE.match(value.strip()):
            raise ValueError(
                f"{value!r} begins with 0, which some readers take for an octal number; "
                "write it without"
            )
        limits = f"{low} to {high} is what the API can hold"
        if isinstance(value, str) and _INTEGER.match(value.strip()):
            digits = len(value.strip().lstrip("+-").replace("_", ""))
            if digits > _MOST_DIGITS:
                raise ValueError(f"a number of {digits} digits is out of range: {limits}")
            number = int(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, float) and value.is_integer():
            number = int(value)
        else:
            raise ValueError(f"a whole number is expected, not {shown(value)}")
        if not low <= number <= high:
            raise ValueError(f"{shown(number)} is out of range: {limits}")
        return number

    return read


def _double(value: Any) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"a number is expected, not {shown(value)}") from None
    if not math.isfinite(number):
        raise ValueError(f"a finite number is expected, not {shown(value)}")
    return number


# YAML 1.1, which gcloud reads, has these words for booleans.
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    raise ValueError(f"true or false is expected, not {shown(value)}")


_DURATION = re.compile(r"\d+(\.\d{1,9})?s\Z", re.ASCII)
_UNITS = {"": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_OTHER_DURATION = re.compile(r"(\d{1,12})\s*(m|min|h|d|)\Z", re.ASCII)
#: Source: google.protobuf.Duration.
_LONGEST_DURATION = 315_576_000_000


def _duration(value: Any) -> str:
    if isinstance(value, str) and _DURATION.match(value.strip()):
        text = value.strip()
        if duration_seconds(text) > _LONGEST_DURATION:
            raise ValueError(f"{text!r} is longer than the API can hold")
        return text
    is_text = isinstance(value, int | str) and not isinstance(value, bool) and not _is_long(value)
    other = _OTHER_DURATION.match(str(value).strip() if is_text else "")
    example = f"{int(other[1]) * _UNITS[other[2]]}s" if other else "3600s"
    raise ValueError(
        f"a duration is seconds with the suffix 's' (at most nine decimals), not {shown(value)}; "
        f"write for example '{example}'"
    )


def duration_seconds(text: str) -> float:
    """Return the seconds that a duration of the API stands for.

    :param text: such as ``3600s`` or ``1.5s``, as the models hold it.
    """
    return float(text.removesuffix("s"))


# No field holds more, and Python writes no integer of more than 4,300 digits.
_MOST_DIGITS = 40


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and abs(value) >= 10**_MOST_DIGITS


def shown(value: Any) -> str:
    """Return a value as a message shows it: a scalar as it is, of others what they are."""
    if _is_long(value):
        return f"a number of about {int(value.bit_length() * math.log10(2)) + 1} digits"
    if isinstance(value, str | bool | int | float) or value is None:
        return repr(value)
    return kind_in_words(value)


_UNSENDABLE = re.compile("[\0\ud800-\udfff]")


def unsendable(text: str) -> str:
    """Return what to say of a text that no service can store, and nothing of any other.

    That is a half of a surrogate pair, which UTF-8 can't say (Python code gets one from bytes in
    another encoding, JSON from a broken escape), and NUL, which ends a process's argument.
    """
    found = _UNSENDABLE.search(text)
    if found is None:
        return ""
    name = "NUL" if found[0] == "\0" else "half of a surrogate pair"
    return (
        f"holds a character that can't be sent: U+{ord(found[0]):04X} ({name}) as character "
        f"{found.start() + 1}; remove it"
    )


def key_in_words(key: Any) -> str:
    """Return a mapping's key, which may be anything, as it is written into a path."""
    if isinstance(key, str):
        return _UNSENDABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", key)
    return shown(key) if isinstance(key, int) else str(key)


def kind_in_words(value: Any) -> str:
    """Return what a value is, in words of YAML."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "null"
    return type(value).__name__


_INT32 = (-(2**31), 2**31 - 1)
_INT64 = (-(2**63), 2**63 - 1)

Text = Annotated[str, WireFormat("string"), _reading(_text)]
Bytes = Annotated[str, WireFormat("string", "byte"), _reading(_text)]
Timestamp = Annotated[str, WireFormat("string", "google-datetime"), _reading(_text)]
Duration = Annotated[str, WireFormat("string", "google-duration"), _reading(_duration)]
Bool = Annotated[bool, WireFormat("boolean"), _reading(_boolean)]
Int32 = Annotated[int, WireFormat("integer", "int32"), _reading(_integer(*_INT32))]
#: An int in Python, text on the wire: JSON numbers can't hold all 64 bits.
Int64 = Annotated[
    int,
    WireFormat("string", "int64"),
    _reading(_integer(*_INT64)),
    PlainSerializer(str, return_type=str, when_used="json"),
]
Double = Annotated[float, WireFormat("number", "double"), _reading(_double)]

_ENUM = _EnumValue()
ScaleTier = Annotated[
    Literal["BASIC", "STANDARD_1", "PREMIUM_1", "BASIC_GPU", "BASIC_TPU", "CUSTOM"], _ENUM
]
AcceleratorType = Annotated[
    Literal[
        "ACCELERATOR_TYPE_UNSPECIFIED",
        "NVIDIA_TESLA_K80",
        "NVIDIA_TESLA_P100",
        "NVIDIA_TESLA_V100",
        "NVIDIA_TESLA_P4",
        "NVIDIA_TESLA_T4",
        "NVIDIA_TESLA_A100",
        "TPU_V2",
        "TPU_V3",
        "TPU_V2_POD",
        "TPU_V3_POD",
        "TPU_V4_POD",
    ],
    _ENUM,
]
State = Annotated[
    Literal[
        "STATE_UNSPECIFIED",
        "QUEUED",
        "PREPARING",
        "RUNNING",
        "SUCCEEDED",
        "FAILED",
        "CANCELLING",
        "CANCELLED",
    ],
    _ENUM,
]
Strategy = Annotated[Literal["STRATEGY_UNSPECIFIED", "ON_DEMAND", "LOW_COST"], _ENUM]
Goal = Annotated[Literal["GOAL_TYPE_UNSPECIFIED", "MAXIMIZE", "MINIMIZE"], _ENUM]
Algorithm = Annotated[
    Literal["ALGORITHM_UNSPECIFIED", "GRID_SEARCH", "RANDOM_SEARCH", "POPULATION_BASED_TRAINING"],
    _ENUM,
]
ParameterType = Annotated[
    Literal["PARAMETER_TYPE_UNSPECIFIED", "DOUBLE", "INTEGER", "CATEGORICAL", "DISCRETE"], _ENUM
]
ParameterScale = Annotated[
    Literal["NONE", "UNIT_LINEAR_SCALE", "UNIT_LOG_SCALE", "UNIT_REVERSE_LOG_SCALE"], _ENUM
]
MultiTrialAlgorithm = Annotated[
    Literal[
        "MULTI_TRIAL_ALGORITHM_UNSPECIFIED",
        "REINFORCEMENT_LEARNING",
        "GRID_SEARCH",
        "REGULARIZED_EVOLUTION",
    ],
    _ENUM,
]
OneShotAlgorithm = Annotated[
    Literal["ONE_SHOT_ALGORITHM_UNSPECIFIED", "REINFORCEMENT_LEARNING"], _ENUM
]
PredictionDataFormat = Annotated[
    Literal[
        "DATA_FORMAT_UNSPECIFIED",
        "JSON",
        "TEXT",
        "TF_RECORD",
        "TF_RECORD_GZIP",
        "FILE_LIST",
        "CSV",
    ],
    _ENUM,
]
ExplanationDataFormat = Annotated[Literal["DATA_FORMAT_UNSPECIFIED", "JSON", "BIGQUERY"], _ENUM]
Framework = Annotated[
    Literal["FRAMEWORK_UNSPECIFIED", "TENSORFLOW", "SCIKIT_LEARN", "XGBOOST"], _ENUM
]
