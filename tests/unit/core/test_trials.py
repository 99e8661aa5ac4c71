from __future__ import annotations

import itertools
from typing import Any

import pytest

from airflow_aiptraining.core.trials import best_trial, order_trials, trial_rows


def trial(trial_id: str, value: Any = None, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"trialId": trial_id, "state": "SUCCEEDED", **fields}
    if value is not None:
        made["finalMetric"] = {"trainingStep": "100", "objectiveValue": value}
    return made


def ids(trials: list[Any]) -> list[str]:
    return [each["trialId"] for each in trials]


@pytest.mark.parametrize(
    ("goal", "order"),
    [
        ("MAXIMIZE", ["2", "3", "1", "4"]),
        ("MINIMIZE", ["1", "3", "2", "4"]),
        (None, ["2", "3", "1", "4"]),
        ("GOAL_TYPE_UNSPECIFIED", ["2", "3", "1", "4"]),
    ],
)
def test_best_comes_first_and_trials_without_metric_last(
    goal: str | None, order: list[str]
) -> None:
    trials = [trial("1", 0.1), trial("2", 0.9), trial("3", 0.5), trial("4")]

    for permutation in itertools.permutations(trials):
        assert ids(order_trials(permutation, goal)) == order


def test_best_trial_follows_the_goal() -> None:
    trials = [trial("1", 0.1), trial("2", 0.9)]

    assert best_trial(trials, "MAXIMIZE") == trials[1]
    assert best_trial(trials, "MINIMIZE") == trials[0]


def test_a_tie_goes_to_the_lower_trial_id_as_a_number() -> None:
    assert best_trial([trial("10", 0.5), trial("9", 0.5)], "MAXIMIZE") == trial("9", 0.5)


@pytest.mark.parametrize(
    "trials",
    [[], [trial("1")], [trial("1", "NaN")], [trial("1", 0.9, state="FAILED")]],
    ids=["none", "no metric", "NaN", "failed"],
)
def test_there_is_no_best_trial_without_a_successful_one_with_a_metric(trials: list[Any]) -> None:
    assert best_trial(trials, "MAXIMIZE") is None


def test_a_failed_trial_never_beats_a_successful_one() -> None:
    trials = [trial("1", 0.99, state="FAILED"), trial("2", 0.5)]

    assert best_trial(trials, "MAXIMIZE") == trials[1]


def test_a_trial_that_was_stopped_early_competes() -> None:
    early = trial("1", 0.9, isTrialStoppedEarly=True)

    assert best_trial([early, trial("2", 0.5)], "MAXIMIZE") == early


def test_an_objective_that_was_left_out_is_zero() -> None:
    """Google's JSON leaves out fields with the value 0."""
    zero = {"trialId": "1", "finalMetric": {"trainingStep": "8000"}}

    assert best_trial([zero, trial("2", 0.5)], "MINIMIZE") == zero


def test_an_unknown_goal_is_an_error() -> None:
    with pytest.raises(ValueError, match="MAXIMIZE or MINIMIZE"):
        best_trial([trial("1", 1.0)], "BIGGEST")


def test_rows_are_ranked_and_typed_for_people() -> None:
    trials = [
        trial("1", 0.1, hyperparameters={"rate": "0.01"}, startTime="s", endTime="e"),
        trial("2"),
        trial("3", 0.9, state="FAILED"),
    ]

    rows = trial_rows(trials, "MAXIMIZE")

    assert [(row["rank"], row["trial_id"]) for row in rows] == [(1, "1"), (None, "2"), (None, "3")]
    assert rows[0] == {
        "rank": 1,
        "trial_id": "1",
        "state": "SUCCEEDED",
        "objective_value": 0.1,
        "training_step": 100,
        "hyperparameters": {"rate": "0.01"},
        "start_time": "s",
        "end_time": "e",
        "is_trial_stopped_early": False,
    }
    assert rows[2]["objective_value"] == 0.9
