"""Task instances written on jobs: any ids, legal labels, nothing lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_aiptraining.core.task_keys import TaskKey

IDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
DAILY = TaskKey("retrain_daily", "train", "scheduled__2026-11-14T00:00:00+00:00")


@given(IDS, IDS, IDS, st.integers(-1, 99_999))
def test_ids_come_back_from_legal_labels(dag: str, task: str, run: str, map_index: int) -> None:
    key = TaskKey(dag, task, run, map_index)
    labels = key.to_labels()

    assert TaskKey.from_labels({"team": "ads", **labels}) == key
    assert all(re.fullmatch("[a-z0-9]{1,63}", value) for value in labels.values())
    assert all(re.fullmatch("[a-z][a-z0-9-]*", name) for name in labels)


def test_usual_ids_take_two_labels_and_the_longest_twenty() -> None:
    assert len(DAILY.to_labels()) == 2
    longest = TaskKey("D" * 250, "t" * 250, "r" * 250, 1023)
    assert len(longest.to_labels()) == 20
    assert TaskKey.from_labels(longest.to_labels()) == longest


def test_ids_too_long_for_labels_are_left_out() -> None:
    assert TaskKey("é" * 250, "é" * 250, "é" * 250).to_labels() == {}


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"airflow-ids-1": "lmrgiyl"},
        {"airflow-ids-1": "not base 32!"},
        {"airflow-ids-2": DAILY.to_labels()["airflow-ids-2"]},
        {"airflow-ids-1": DAILY.to_labels()["airflow-ids-1"]},
    ],
)
def test_labels_that_hold_no_whole_ids_are_no_task(labels: dict[str, str]) -> None:
    assert TaskKey.from_labels(labels) is None
