"""Conditions on metrics: how they are read, and what is said when one doesn't hold."""

from __future__ import annotations

import json

import pytest

from airflow_aiptraining.core.conditions import (
    MAX_FIGURES,
    MAX_METRICS_BYTES,
    Condition,
    Outcome,
    figures,
    look_up,
    parse_conditions,
    parse_metrics,
)

METRICS = {
    "accuracy": 0.93,
    "loss": 0.2,
    "eval": {"auc": 0.8, "by.class": {"cat": 1}},
    "training/hptuning/metric": 0.5,
    "name": "census",
    "good": True,
    "bad": float("nan"),
    "huge": float("inf"),
    "text": "0.93",
}


@pytest.mark.parametrize(
    ("sentence", "outcome"),
    [
        ("accuracy >= 0.9", Outcome.HOLDS),
        ("accuracy>=0.93", Outcome.HOLDS),
        ("accuracy > 0.93", Outcome.FAILS),
        ("loss <= .2", Outcome.HOLDS),
        ("loss < 2e-1", Outcome.FAILS),
        ("loss == 0.2", Outcome.HOLDS),
        ("loss != 0.2", Outcome.FAILS),
        ("eval.auc >= 0.8", Outcome.HOLDS),
        ("eval.by.class.cat == 1", Outcome.HOLDS),
        ("training/hptuning/metric > 0", Outcome.HOLDS),
        ("accuracy > -1", Outcome.HOLDS),
        ("missing > 0", Outcome.UNKNOWN),
        ("eval.missing > 0", Outcome.UNKNOWN),
        ("eval > 0", Outcome.UNKNOWN),
        ("name > 0", Outcome.UNKNOWN),
        ("text > 0", Outcome.UNKNOWN),
        ("good >= 1", Outcome.UNKNOWN),
        ("bad <= 1", Outcome.FAILS),
        ("bad != 1", Outcome.FAILS),
        ("huge >= 1", Outcome.FAILS),
    ],
)
def test_a_condition_is_put_to_the_metrics(sentence: str, outcome: Outcome) -> None:
    judgement = Condition.parse(sentence).judge(METRICS, "metrics.json of job 'a_1'")
    assert judgement.outcome is outcome
    assert (judgement.reason == "") is (outcome is Outcome.HOLDS)


def test_a_failed_condition_says_the_number_the_bound_and_the_job() -> None:
    judgement = Condition.parse("accuracy >= 0.95").judge(METRICS, "metrics.json of job 'a_1'")
    assert judgement.reason == (
        "accuracy is 0.93 in metrics.json of job 'a_1'; accuracy >= 0.95 was asked for."
    )


def test_a_missing_metric_says_what_there_is() -> None:
    judgement = Condition.parse("acuracy >= 0.9").judge(METRICS, "metrics.json")
    assert "has no 'acuracy' (it has: accuracy, loss, eval.auc," in judgement.reason


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_that_no_float_can_hold_is_not_finite(digits: int, sign: str) -> None:
    text = f'{{"accuracy": 0.93, "rows": {sign}1{"0" * digits}}}'
    given = {"accuracy": 0.93, "rows": int(f"{sign}1") * 10**digits}

    for metrics in (given, parse_metrics(text.encode())):
        holds = Condition.parse("accuracy >= 0.9").judge(metrics, "metrics.json")
        assert holds.outcome is Outcome.HOLDS
        typo = Condition.parse("acuracy >= 0.9").judge(metrics, "metrics.json")
        assert typo.outcome is Outcome.UNKNOWN
        assert "has no 'acuracy' (it has: accuracy)" in typo.reason
        named = Condition.parse("rows != 0").judge(metrics, "metrics.json")
        assert named.outcome is Outcome.FAILS
        assert named.reason.startswith(f"rows is {sign}inf in metrics.json; ")
        assert figures(metrics) == [("accuracy", 0.93)]


def test_an_integer_is_read_and_judged_as_exactly_as_it_is_written() -> None:
    metrics = parse_metrics(b'{"rows": 9007199254740993}')
    assert metrics == {"rows": 9007199254740993}
    assert Condition.parse("rows > 9007199254740992").judge(metrics, "").outcome is Outcome.HOLDS


@pytest.mark.parametrize(
    "sentence",
    ["accuracy", "accuracy => 0.9", "accuracy >= high", ">= 1", "0.9", "", "a >= 1 >= 2"],
)
def test_a_sentence_that_is_no_condition_is_refused(sentence: str) -> None:
    with pytest.raises(ValueError, match="can't be read"):
        Condition.parse(sentence)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, []),
        ([], []),
        ("a > 1", ["a > 1"]),
        (["a > 1", "b < 2"], ["a > 1", "b < 2"]),
        ({"a": "> 1", "b": [">= 0", "< 2"]}, ["a > 1", "b >= 0", "b < 2"]),
        ([{"a": "> 1"}, "b < 2"], ["a > 1", "b < 2"]),
    ],
)
def test_conditions_come_as_text_list_or_mapping(given: object, expected: list[str]) -> None:
    assert [str(condition) for condition in parse_conditions(given)] == expected  # type: ignore[arg-type]


def test_a_mapping_without_a_sign_is_refused() -> None:
    with pytest.raises(ValueError, match="isn't a sign and a number"):
        parse_conditions({"accuracy": 0.9})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not JSON"),
        (b"{accuracy: 1}", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "holds a JSON list"),
        (b"0.9", "holds a JSON float"),
        (b" " * (MAX_METRICS_BYTES + 1), "larger than 1,000,000 bytes"),
    ],
    ids=["empty", "no JSON", "no UTF-8", "too deep", "a list", "a number", "too large"],
)
def test_a_file_that_holds_no_metrics_is_told(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_metrics(data)


def test_a_byte_order_mark_is_no_hindrance() -> None:
    assert parse_metrics(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_a_key_with_dots_in_it_comes_first() -> None:
    assert look_up({"a.b": 1, "a": {"b": 2}}, "a.b") == 1


def test_figures_are_finite_named_and_few() -> None:
    assert dict(figures(METRICS)) == {
        "accuracy": 0.93,
        "loss": 0.2,
        "eval.auc": 0.8,
        "eval.by.class.cat": 1,
        "training/hptuning/metric": 0.5,
    }
    json.dumps(dict(figures(METRICS)), allow_nan=False)
    assert len(figures({str(number): number for number in range(500)})) == MAX_FIGURES
