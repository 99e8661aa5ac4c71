"""What a task says of a job that has ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_aiptraining.operators.job_result import job_result, printable, waited_too_long

ENDED = {
    "jobId": "j_1",
    "state": "SUCCEEDED",
    "createTime": "2026-11-14T10:00:00Z",
    "startTime": "2026-11-14T10:01:00Z",
    "endTime": "2026-11-14T12:01:00Z",
    "trainingInput": {"scaleTier": "BASIC", "jobDir": "gs://b/j_1"},
    "trainingOutput": {"consumedMLUnits": 0.77},
}


def test_result_is_small_json_with_an_estimate() -> None:
    result = job_result(ENDED, "p")

    assert json.loads(json.dumps(result)) == result
    assert result | {"price_estimate": None} == {
        "job_id": "j_1",
        "project_id": "p",
        "state": "SUCCEEDED",
        "create_time": "2026-11-14T10:00:00Z",
        "start_time": "2026-11-14T10:01:00Z",
        "end_time": "2026-11-14T12:01:00Z",
        "consumed_ml_units": 0.77,
        "price_estimate": None,
        "best_trial": None,
        "job_dir": "gs://b/j_1",
    }
    # Source: the price list's 0.3878 units an hour at 0.49 USD.
    assert result["price_estimate"]["usd"] == pytest.approx(0.38, abs=0.01)


def test_job_that_never_started_has_no_price() -> None:
    never = {key: value for key, value in ENDED.items() if key != "startTime"}

    assert job_result(never, "p")["price_estimate"] is None


def test_tuning_job_tells_its_best_trial_and_pays_for_all() -> None:
    def trial(number: str, objective: float) -> dict[str, Any]:
        return {
            "trialId": number,
            "state": "SUCCEEDED",
            "startTime": ENDED["startTime"],
            "endTime": ENDED["endTime"],
            "hyperparameters": {"depth": number},
            "finalMetric": {"trainingStep": "10", "objectiveValue": objective},
        }

    tuned = {
        **ENDED,
        "trainingInput": {
            **ENDED["trainingInput"],  # type: ignore[dict-item]
            "hyperparameters": {"goal": "MAXIMIZE"},
        },
        "trainingOutput": {"trials": [trial("1", 0.8), trial("2", 0.9)]},
    }
    result = job_result(tuned, "p")

    assert result["best_trial"] == {
        "trialId": "2",
        "hyperparameters": {"depth": "2"},
        "finalMetric": {"trainingStep": "10", "objectiveValue": 0.9},
    }
    assert result["price_estimate"]["usd"] == pytest.approx(0.76, abs=0.01)


def test_remote_text_cannot_steer_a_terminal() -> None:
    assert printable("a\x1b[2Jb\r\tc\nd é") == "a\ufffd[2Jb\ufffd\tc\nd é"


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"errorMessage": "Cancelled: maxWaitTime of 1800s has passed."}, True),
        ({"errorMessage": "maxWaitTime", "startTime": "2026-11-14T10:01:00Z"}, False),
        ({"errorMessage": "Cancelled by a user."}, False),
        ({}, False),
    ],
)
def test_only_a_job_without_machines_waited_too_long(job: dict[str, Any], expected: bool) -> None:
    assert waited_too_long(job) is expected
