"""Trials of a hyperparameter tuning job: their order, the best one, rows for people.

Source: ML v1 ``HyperparameterOutput``, discovery, revision 20251213; the order is the service's
own: best objective first, trials without ``finalMetric`` last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from airflow_aiptraining.core.states import JobState

Trial = Mapping[str, Any]


class TrialRow(TypedDict):
    """One trial, as people read it.

    ``rank``: 1 for the best; ``None`` for trials that aren't in the competition.
    """

    rank: int | None
    trial_id: str
    state: str
    objective_value: float | None
    training_step: int | None
    hyperparameters: dict[str, str]
    start_time: str | None
    end_time: str | None
    is_trial_stopped_early: bool


def best_trial(trials: Sequence[Trial], goal: str | None = None) -> Trial | None:
    """Return the successful trial with the best final metric.

    :param trials: ``trainingOutput.trials`` of one job, in any order.
    :param goal: ``hyperparameters.goal`` of the job: ``MAXIMIZE`` or ``MINIMIZE``; where it is
        missing or unspecified the service maximizes.
    :return: the winner, on a tie the one with the lower trial id; ``None`` where no trial
        succeeded with a metric.
    :raises ValueError: the goal is another word.
    """
    ordered = order_trials(trials, goal)
    return ordered[0] if ordered and objective_value(ordered[0]) is not None else None


def order_trials(trials: Sequence[Trial], goal: str | None = None) -> list[Trial]:
    """Return the trials, best first; those that failed or have no final metric last.

    Parameters and errors as for :func:`best_trial`.
    """
    sign = _sign(goal)

    def key(trial: Trial) -> tuple[bool, float, int, str]:
        value = objective_value(trial)
        trial_id = str(trial.get("trialId", ""))
        number = int(trial_id) if trial_id.isdecimal() else 0
        return value is None, 0.0 if value is None else sign * value, number, trial_id

    return sorted(trials, key=key)


def trial_rows(trials: Sequence[Trial], goal: str | None = None) -> list[TrialRow]:
    """Return one row for each trial, in the order of :func:`order_trials`."""
    return [_row(trial, rank) for rank, trial in enumerate(order_trials(trials, goal), start=1)]


def objective_value(trial: Trial) -> float | None:
    """Return the final metric by which a trial competes, ``None`` where it doesn't.

    A trial that didn't succeed has no whole model, whatever it reported before; NaN is no result.
    """
    if JobState.of(trial) not in (JobState.SUCCEEDED, JobState.STATE_UNSPECIFIED):
        return None
    return _metric(trial)


def _metric(trial: Trial) -> float | None:
    metric = trial.get("finalMetric")
    if not metric:
        return None
    try:
        # Google's JSON leaves out fields that are zero.
        value = float(metric.get("objectiveValue", 0.0))
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _row(trial: Trial, rank: int) -> TrialRow:
    metric = trial.get("finalMetric") or {}
    step = metric.get("trainingStep")
    return {
        "rank": rank if objective_value(trial) is not None else None,
        "trial_id": str(trial.get("trialId", "")),
        "state": JobState.of(trial).value,
        "objective_value": _metric(trial),
        "training_step": int(step) if step is not None else None,
        "hyperparameters": dict(trial.get("hyperparameters") or {}),
        "start_time": trial.get("startTime"),
        "end_time": trial.get("endTime"),
        "is_trial_stopped_early": bool(trial.get("isTrialStoppedEarly", False)),
    }


def _sign(goal: str | None) -> int:
    match goal or "GOAL_TYPE_UNSPECIFIED":
        case "MAXIMIZE" | "GOAL_TYPE_UNSPECIFIED":
            return -1
        case "MINIMIZE":
            return 1
        case _:
            raise ValueError(f"{goal!r} is not a goal; it is MAXIMIZE or MINIMIZE")
