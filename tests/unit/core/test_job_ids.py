"""Job ids: legal, sorted by date and attempt, and never another task's."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_aiptraining.core.job_ids import (
    MAX_BASE_LENGTH,
    WorkId,
    check_base,
    default_base,
    fill_in,
    split,
    work_id,
)
from airflow_aiptraining.exceptions import InvalidJobIdError

LEGAL = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
DAY = datetime(2026, 11, 14, tzinfo=UTC)


def _work(base: str = "census", **changes: object) -> WorkId:
    given = {
        "run_id": "scheduled__2026-11-14T00:00:00+00:00",
        "run_type": "scheduled",
        "logical_date": DAY,
        "run_after": DAY + timedelta(days=1),
        **changes,
    }
    return work_id(base, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "attempt", "expected"),
    [
        pytest.param({}, 1, "census_20261114_000000", id="first attempt"),
        pytest.param({}, 2, "census_20261114_000000_a002", id="second attempt"),
        pytest.param({"map_index": 7}, 1, "census_20261114_000000_m00007", id="mapped"),
        pytest.param({"map_index": 0}, 12, "census_20261114_000000_m00000_a012", id="mapped again"),
        pytest.param({"run_type": "backfill"}, 1, "census_20261114_000000", id="backfill"),
        pytest.param(
            {"logical_date": DAY.astimezone(timezone(timedelta(hours=9)))},
            1,
            "census_20261114_000000",
            id="another time zone",
        ),
    ],
)
def test_id_is_base_date_map_index_attempt(
    changes: dict[str, object], attempt: int, expected: str
) -> None:
    assert _work(**changes).attempt(attempt) == expected


def test_manual_runs_of_one_second_have_ids_of_their_own() -> None:
    first = _work(run_type="manual", run_id="manual__a", logical_date=None)
    second = _work(run_type="manual", run_id="manual__b", logical_date=None)

    assert re.fullmatch(r"census_20261115_000000_r[0-9a-f]{8}", first.attempt(1))
    assert first.attempt(1) != second.attempt(1)


def test_names_sort_by_date_then_map_index_then_attempt() -> None:
    ids = [
        _work(logical_date=DAY + timedelta(days=day), map_index=index).attempt(attempt)
        for day in range(3)
        for index in (0, 2, 10)
        for attempt in (1, 2, 10)
    ]

    assert ids == sorted(ids)


@pytest.mark.parametrize(
    ("dag_id", "task_id"),
    [
        ("retrain-daily", "train"),
        ("eu.train", "group.sub.task-1"),
        ("2026", "1"),
        ("ä", "ö"),
        ("d" * 250, "t" * 250),
        ("_", "-"),
    ],
)
def test_default_base_of_any_dag_and_task_is_legal(dag_id: str, task_id: str) -> None:
    base = default_base(dag_id, task_id)

    assert check_base(base) == base
    assert LEGAL.fullmatch(_work(base, run_type="manual", map_index=99999).attempt(999))


@given(st.text(min_size=1, max_size=250), st.text(min_size=1, max_size=250))
def test_every_default_base_is_legal(dag_id: str, task_id: str) -> None:
    check_base(default_base(dag_id, task_id))


def test_ids_that_normalise_alike_do_not_collide() -> None:
    bases = {
        default_base(dag, task)
        for dag, task in [("a.b-c", "t"), ("a_b_c", "t"), ("a-b.c", "t"), ("a_b", "c_t")]
    }

    assert len(bases) == 4


@pytest.mark.parametrize("base", ["", "1abc", "a-b", "a.b", "ä", "a b", "_a", "{{ ds }}", "a\n"])
def test_illegal_base_is_refused_with_a_legal_one(base: str) -> None:
    with pytest.raises(InvalidJobIdError, match="begins with a letter") as error:
        check_base(base)

    suggested = re.search(r"for example '([^']+)'", str(error.value))
    assert suggested and check_base(suggested[1])


def test_too_long_base_is_refused_with_the_limit() -> None:
    with pytest.raises(InvalidJobIdError, match=f"at most {MAX_BASE_LENGTH}"):
        check_base("a" * (MAX_BASE_LENGTH + 1))


@pytest.mark.parametrize("map_index", [-1, 0, 123456])
@pytest.mark.parametrize("attempt", [1, 2, 1234])
@pytest.mark.parametrize("run_type", ["scheduled", "manual"])
def test_split_gives_back_what_made_the_id(map_index: int, attempt: int, run_type: str) -> None:
    work = _work("a_20200101_000000", run_type=run_type, map_index=map_index)

    assert split(work.attempt(attempt)) == (work, attempt)


@pytest.mark.parametrize("job_id", ["by_hand", "x_20269999_000000", "a", ""])
def test_split_leaves_other_peoples_ids_alone(job_id: str) -> None:
    assert split(job_id) is None


def test_fill_in_reaches_values_and_leaves_keys() -> None:
    value = {"args": ["--out=gs://b/{job_id}", 3], "{job_id}": {"n": None}}

    assert fill_in(value, "j_1") == {"args": ["--out=gs://b/j_1", 3], "{job_id}": {"n": None}}
