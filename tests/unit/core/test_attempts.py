"""The decision table: one row for each job that may be found."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_aiptraining.core.attempts import (
    OWNER,
    TRY,
    Action,
    Ledger,
    Stamp,
    decide,
    is_ours,
    job_labels,
    owner_label,
    spec_label,
    was_cleared,
)
from airflow_aiptraining.core.task_keys import TaskKey

TASK = TaskKey("dag", "task", "run")
OURS = owner_label("prod", "dag", "task", "run", -1)
FIRST = Stamp(2, "00-aa-bb-01")
CLEARED = Stamp(3, "00-cc-dd-01")


def _job(state: str, owner: str = OURS, stamp: Stamp | None = FIRST) -> dict[str, Any]:
    labels = {OWNER: owner} | ({TRY: stamp.label} if stamp else {})
    return {"jobId": "j_1", "state": state, "labels": labels}


def _ledger(stamp: Stamp = FIRST, **changes: Any) -> Ledger:
    facts = {
        "attempt": 1,
        "job_id": "j_1",
        "service": "local",
        "api_endpoint": "http://127.0.0.1:1",
        "project_id": "p",
        "stamp": stamp,
        **changes,
    }
    return Ledger(**facts)


@pytest.mark.parametrize(
    ("state", "cleared", "action"),
    [
        ("QUEUED", False, Action.ATTACH),
        ("PREPARING", False, Action.ATTACH),
        ("RUNNING", False, Action.ATTACH),
        ("QUEUED", True, Action.CANCEL),
        ("PREPARING", True, Action.CANCEL),
        ("RUNNING", True, Action.CANCEL),
        ("CANCELLING", False, Action.WAIT),
        ("CANCELLING", True, Action.WAIT),
        ("SUCCEEDED", False, Action.TAKE_RESULT),
        ("SUCCEEDED", True, Action.NEXT_ATTEMPT),
        ("FAILED", False, Action.NEXT_ATTEMPT),
        ("FAILED", True, Action.NEXT_ATTEMPT),
        ("CANCELLED", False, Action.NEXT_ATTEMPT),
        ("CANCELLED", True, Action.NEXT_ATTEMPT),
        ("STATE_UNSPECIFIED", False, Action.ATTACH),
        ("PAUSED_FOR_LUNCH", False, Action.ATTACH),
        ("PAUSED_FOR_LUNCH", True, Action.CANCEL),
    ],
)
def test_our_own_job(state: str, cleared: bool, action: Action) -> None:
    assert decide(_job(state), ours=True, cleared=cleared) is action


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED", "CANCELLED"])
def test_end_of_a_job_that_this_very_try_awaits_is_its_result(state: str) -> None:
    job = _job(state)

    assert decide(job, ours=True, cleared=False, awaited=True) is Action.TAKE_RESULT
    assert decide(job, ours=True, cleared=True, awaited=True) is Action.NEXT_ATTEMPT


def test_no_job_is_created() -> None:
    assert decide(None, ours=True, cleared=False) is Action.CREATE


@pytest.mark.parametrize("cleared", [True, False])
@pytest.mark.parametrize("state", ["QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"])
def test_another_owners_job_is_refused_in_every_state(state: str, cleared: bool) -> None:
    assert decide(_job(state), ours=False, cleared=cleared) is Action.REFUSE


def _submitted(
    deployment: str = "prod", task: TaskKey = TASK, stamp: Stamp = FIRST
) -> dict[str, Any]:
    """Return a job as the operator submits it."""
    labels = job_labels(deployment=deployment, task=task, spec="s", stamp=stamp)
    return {"jobId": "j_1", "state": "RUNNING", "labels": labels}


def _is_ours(job: dict[str, Any], ledger: Ledger | None = None) -> bool:
    return is_ours(job, deployment="prod", task=TASK, ledger=ledger)


def test_job_is_ours_by_its_owner() -> None:
    assert _is_ours(_submitted())


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(_submitted(task=TaskKey("dag", "another", "run")), id="another task"),
        pytest.param(_submitted(task=TaskKey("dag", "task", "run", 0)), id="another instance"),
        pytest.param(_submitted("dev"), id="another Airflow"),
        pytest.param({"jobId": "j_1", "labels": {OWNER: "somebody"}}, id="another owner"),
        pytest.param({"jobId": "j_1", "labels": {}}, id="no owner"),
        pytest.param({"jobId": "j_1"}, id="no labels"),
        pytest.param(
            _submitted() | {"labels": _submitted()["labels"] | {OWNER: "x"}}, id="forged ids"
        ),
    ],
)
def test_job_is_anothers(job: dict[str, Any]) -> None:
    assert not _is_ours(job)
    assert not _is_ours(job, _ledger(CLEARED))


def test_job_of_the_same_date_in_a_run_that_was_deleted_is_ours() -> None:
    assert _is_ours(_submitted(task=TaskKey("dag", "task", "scheduled__2026-11-14")))


def test_ledger_speaks_for_a_job_of_a_deployment_that_was_renamed() -> None:
    assert _is_ours(_submitted("former name"), _ledger(FIRST))
    assert not _is_ours(_submitted("former name"), _ledger(FIRST, job_id="j_2"))


def test_ledger_without_a_trace_speaks_for_no_job() -> None:
    """Two Airflows without traces write equal stamps."""
    plain = Stamp(2)

    assert not _is_ours(_submitted("dev", stamp=plain), _ledger(plain))


@pytest.mark.parametrize("state", ["QUEUED", "PREPARING", "RUNNING"])
def test_cleared_job_is_kept_where_the_author_wants_no_cancelling(state: str) -> None:
    assert decide(_job(state), ours=True, cleared=True, cancel_on_kill=False) is Action.ATTACH


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(FIRST, FIRST, False, id="retry"),
        pytest.param(FIRST, CLEARED, True, id="clear"),
        pytest.param(FIRST, Stamp(2, "00-cc-dd-01"), True, id="clear of a running task"),
        pytest.param(FIRST, Stamp(1, "00-aa-bb-01"), True, id="retries lowered before the clear"),
        pytest.param(FIRST, Stamp(2, ""), False, id="carrier unknown now"),
        pytest.param(Stamp(2, ""), FIRST, False, id="carrier unknown then"),
    ],
)
def test_ledger_tells_a_clear_from_a_retry(old: Stamp, new: Stamp, expected: bool) -> None:
    assert was_cleared(_job("RUNNING", stamp=old), _ledger(old), new) is expected


def test_without_ledger_the_jobs_own_label_tells() -> None:
    assert was_cleared(_job("SUCCEEDED"), None, FIRST) is False
    assert was_cleared(_job("SUCCEEDED"), None, CLEARED) is True


def test_job_without_try_label_is_never_taken_silently() -> None:
    assert was_cleared(_job("SUCCEEDED", stamp=None), None, FIRST) is True


def test_ledger_written_before_a_conflict_does_not_vouch_for_the_old_job() -> None:
    """A run deleted and made again: its first try wrote its ledger, found the old job, and died."""
    old_job = _job("SUCCEEDED", stamp=FIRST)

    assert was_cleared(old_job, _ledger(CLEARED), CLEARED) is True


def test_adopted_job_is_ours_until_the_next_clear() -> None:
    job, ledger = _job("RUNNING", stamp=FIRST), _ledger(CLEARED, adopted=FIRST.label)

    assert was_cleared(job, ledger, CLEARED) is False
    assert was_cleared(job, ledger, Stamp(4, "00-ee-ff-01")) is True


def test_ledger_survives_json() -> None:
    ledger = _ledger(region="r", adopted="x", resource_name="n", try_number=3)

    assert Ledger.from_json(ledger.to_json()) == ledger


def test_ledger_of_another_version_is_read() -> None:
    written = _ledger().to_json() | {"version": 99, "a_later_field": {"x": 1}}
    del written["adopted"], written["region"]

    assert Ledger.from_json(written) == _ledger()


@pytest.mark.parametrize(
    "value",
    [
        None,
        "x",
        [],
        {},
        {"stamp": {}},
        {"stamp": {"max_tries": 1}},
        _ledger().to_json() | {"attempt": "2"},
        _ledger().to_json() | {"attempt": True},
        _ledger().to_json() | {"try_number": None},
        _ledger().to_json() | {"job_id": 7},
        _ledger().to_json() | {"api_endpoint": None},
    ],
)
def test_what_is_no_ledger_is_none(value: Any) -> None:
    assert Ledger.from_json(value) is None


def test_owners_differ_by_deployment_run_and_map_index() -> None:
    owners = {
        owner_label("prod", "d", "t", "r", -1),
        owner_label("dev", "d", "t", "r", -1),
        owner_label("prod", "d", "t", "r2", -1),
        owner_label("prod", "d", "t", "r", 0),
    }

    assert len(owners) == 4


def test_spec_covers_the_training_input_and_nothing_of_the_attempt() -> None:
    body = {"jobId": "a", "labels": {"x": "1"}, "trainingInput": {"region": "r"}}

    assert spec_label(body) == spec_label(body | {"jobId": "b", "labels": {}})
    assert spec_label(body) != spec_label(body | {"trainingInput": {"region": "s"}})


def test_labels_are_legal_and_readable() -> None:
    labels = job_labels(
        deployment="prod",
        task=TaskKey("Retrain.Daily", "x" * 250, "scheduled__2026-11-14T00:00:00+00:00"),
        spec="s" * 32,
        stamp=FIRST,
    )

    assert labels["airflow-dag"] == "retrain-daily"
    assert labels["airflow-run"] == "scheduled__2026-11-14t00-00-00-00-00"
    assert all(len(value) <= 63 for value in labels.values())
