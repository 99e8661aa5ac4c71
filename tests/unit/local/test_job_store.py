from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.local.job_store import (
    LEGAL,
    IllegalTransitionError,
    Job,
    JobExistsAlreadyError,
    JobStore,
    Replica,
    StaleEtagError,
)

ROADS = {
    JobState.QUEUED: [],
    JobState.PREPARING: [JobState.PREPARING],
    JobState.RUNNING: [JobState.PREPARING, JobState.RUNNING],
    JobState.SUCCEEDED: [JobState.PREPARING, JobState.RUNNING, JobState.SUCCEEDED],
    JobState.FAILED: [JobState.PREPARING, JobState.FAILED],
    JobState.CANCELLING: [JobState.CANCELLING],
    JobState.CANCELLED: [JobState.CANCELLING, JobState.CANCELLED],
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    store = JobStore(tmp_path / "jobs.sqlite")
    yield store
    store.close()


def create(store: JobStore, job_id: str = "a", priority: int = 0) -> Job:
    return store.create(
        "p", job_id, labels={"a": "b"}, training_input={"region": "r"}, priority=priority
    )


@pytest.mark.parametrize("at", ROADS, ids=str)
@pytest.mark.parametrize("to", JobState, ids=str)
def test_only_legal_transitions_are_made(store: JobStore, at: JobState, to: JobState) -> None:
    uid = create(store).uid
    for state in ROADS[at]:
        store.advance(uid, state)

    if to in LEGAL.get(at, ()):
        assert store.advance(uid, to).state is to
    else:
        with pytest.raises(IllegalTransitionError) as caught:
            store.advance(uid, to)
        assert caught.value.state is at
        assert store.get_by_uid(uid).state is at


def test_end_states_have_no_followers() -> None:
    assert {state for state in JobState if state.is_terminal}.isdisjoint(LEGAL)


def test_times_are_set_on_the_way(store: JobStore) -> None:
    uid = create(store).uid
    assert store.get_by_uid(uid).start_time is None
    store.advance(uid, JobState.PREPARING)
    running = store.advance(uid, JobState.RUNNING)
    ended = store.advance(uid, JobState.SUCCEEDED, output={"consumedMLUnits": 1.5})

    assert running.end_time is None
    assert ended.create_time <= (ended.start_time or 0) <= (ended.end_time or 0)
    assert ended.output == {"consumedMLUnits": 1.5}


def test_reason_of_a_cancel_stays(store: JobStore) -> None:
    uid = create(store).uid
    store.advance(uid, JobState.CANCELLING, error_message="by hand")

    assert store.advance(uid, JobState.CANCELLED).error_message == "by hand"


def test_id_is_taken_for_ever_in_its_project(store: JobStore) -> None:
    job = create(store)
    store.advance(job.uid, JobState.FAILED)

    with pytest.raises(JobExistsAlreadyError):
        create(store)
    assert store.get("p", "a") is not None
    assert store.get("other", "a") is None
    assert store.get("p", "A") is None


def test_what_was_said_is_there_after_a_new_start(tmp_path: Path) -> None:
    first = JobStore(tmp_path / "jobs.sqlite")
    job = create(first)
    first.add_replicas([Replica("r1", job.uid, "master", 0)])
    first.set_exit("r1", {"returncode": 1})
    first.close()

    second = JobStore(tmp_path / "jobs.sqlite")

    assert second.get("p", "a") == job
    (replica,) = second.replicas(job.uid)
    assert (replica.task_name, replica.exit) == ("master-replica-0", {"returncode": 1})


def test_queue_is_ordered_by_priority_then_age(store: JobStore) -> None:
    for job_id, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
        create(store, job_id, priority)

    queue = store.in_states(JobState.QUEUED)

    assert [job.job_id for job in queue] == ["b", "d", "a", "c"]
    assert [store.position(job) for job in queue] == [1, 2, 3, 4]


def test_stale_etag_changes_nothing(store: JobStore) -> None:
    job = create(store)
    changed = store.set_labels(job.uid, {"x": "y"}, etag=job.etag)

    with pytest.raises(StaleEtagError):
        store.set_labels(job.uid, {}, etag=job.etag)
    assert changed.etag != job.etag
    assert store.get_by_uid(job.uid).labels == {"x": "y"}


def test_folder_of_a_version_without_addresses_is_read(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    first = JobStore(path)
    job = first.create("p", "a", labels={}, training_input={})
    first.close()
    with contextlib.closing(sqlite3.connect(path)) as old:
        old.execute("ALTER TABLE replicas DROP COLUMN address")
        old.execute(
            "INSERT INTO replicas (uid, job_uid, role, position) VALUES ('r', ?, 'master', 0)",
            (job.uid,),
        )
        old.commit()

    store = JobStore(path)
    store.add_replicas([Replica("s", job.uid, "worker", 0, address="127.0.0.1:20001")])

    assert [replica.address for replica in store.replicas(job.uid)] == ["", "127.0.0.1:20001"]
    assert store.ports() == {20001}
    store.advance(job.uid, JobState.FAILED)
    assert store.ports() == set()
    store.close()
