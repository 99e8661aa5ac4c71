from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_aiptraining.local.filters import (
    MAX_LENGTH,
    FilterError,
    bounds,
    matches,
    parse,
    replace_values,
    required_values,
)

JOB = {"jobId": "rnn_1", "state": "FAILED", "labels.team": "a", "workers": "10"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("  ", True),
        ("jobId:rnn*", True),
        ("jobId=rnn*", True),
        ("jobId:rnn", False),
        ("jobId:*", True),
        ("missing:*", False),
        ("jobId:rnn* AND state:FAILED", True),
        ("jobId:rnn* state:FAILED", True),
        ("jobId:cnn* AND state:FAILED", False),
        ("jobId:cnn* OR state:FAILED", True),
        ("state=RUNNING OR state=QUEUED AND jobId:rnn*", False),
        ("(state=RUNNING OR state=FAILED) AND jobId:rnn*", True),
        ("NOT state=RUNNING", True),
        ("-state=FAILED", False),
        ("NOT (state=RUNNING OR jobId=x)", True),
        ("state!=RUNNING", True),
        ("missing!=a", True),
        ("NOT missing=a", True),
        ("missing=a", False),
        ('jobId="rnn_1"', True),
        ('jobId="rnn*"', False),
        ('labels."team"=a', True),
        ("jobId>rnn_0", True),
        ("jobId<=rnn_1", True),
        ("missing>a", False),
    ],
)
def test_job_passes(text: str, expected: bool) -> None:
    assert matches(parse(text), JOB.get) is expected


def test_order_is_the_callers() -> None:
    def numbers(found: str, asked: str) -> int:
        return int(found) - int(asked)

    assert matches(parse("workers>9"), JOB.get, numbers)
    assert not matches(parse("workers>9"), JOB.get)


def test_colon_may_mean_contains() -> None:
    assert matches(parse("state:fail"), JOB.get, has_substring=True)
    assert not matches(parse("state:fail"), JOB.get)


def test_time_needs_no_quotes() -> None:
    times = {"t": "2026-01-01T00:00:00Z"}

    assert matches(parse("t=2026-01-01T00:00:00Z"), times.get)
    assert matches(parse("(t>=2026-01-01T00:00:00Z)"), times.get)


def test_quotes_and_backslashes_can_be_escaped() -> None:
    assert matches(parse(r'a="x \"y\" \\"'), {"a": r'x "y" ' + "\\"}.get)


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a=",
        "=a",
        "(a=1",
        "a=1)",
        "OR",
        "AND a=1",
        "a=1 AND",
        "a=1 OR",
        "NOT",
        '"',
        'a="1',
        "()",
    ],
)
def test_what_is_no_filter_is_told(text: str) -> None:
    with pytest.raises(FilterError):
        parse(text)


def test_size_and_depth_are_bounded() -> None:
    with pytest.raises(FilterError, match="characters"):
        parse("a=" + "1" * MAX_LENGTH)
    with pytest.raises(FilterError, match="levels"):
        parse("(" * 200 + "a=1" + ")" * 200)
    with pytest.raises(FilterError, match="levels"):
        parse("NOT " * 200 + "a=1")


@given(st.text(alphabet='ab=:!<>()*"\\ANDORNT- ', max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        node = parse(text)
    except FilterError:
        return
    matches(node, {"a": "b"}.get)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id=a", {"a"}),
        ("id=a AND x=1", {"a"}),
        ("id=a AND id=b", set()),
        ("id=a OR id=b", {"a", "b"}),
        ("(id=a OR id=b) AND id=b", {"b"}),
        ("id=a OR x=1", None),
        ("NOT id=a", None),
        ("id:a*", None),
        ("id!=a", None),
        ("", None),
    ],
)
def test_values_that_must_be_there(text: str, expected: set[str] | None) -> None:
    assert required_values(parse(text), "id") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t>=b AND t<d", ("b", "d")),
        ("t>a AND t>b", ("b", None)),
        ("(t=b AND i>1) OR t>b", ("b", None)),
        ("t>b OR x=1", (None, None)),
        ("NOT t>b", (None, None)),
        ("t=b", ("b", "b")),
    ],
)
def test_bounds_that_must_be_kept(text: str, expected: tuple[str | None, str | None]) -> None:
    assert bounds(parse(text), "t") == expected


def test_values_of_a_field_can_be_replaced() -> None:
    node = replace_values(parse("NOT (a=x OR (b=x AND a=y))"), "a", str.upper)

    assert node == parse("NOT (a=X OR (b=x AND a=Y))")
