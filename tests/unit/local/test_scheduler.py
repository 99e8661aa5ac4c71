"""The queue's clocks, over a real store and jobs that do nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.local import job_store
from airflow_aiptraining.local.job_folder import JobFolder
from airflow_aiptraining.local.job_store import Job, JobStore
from airflow_aiptraining.local.scheduler import PATIENCE_SECONDS, Scheduler, duration


class IdleRun:
    """Brings its job as far as it is told, and stays there."""

    def __init__(self, store: JobStore, uid: str, stops_at: JobState) -> None:
        self._store, self._uid, self._stops_at = store, uid, stops_at

    async def run(self, on_running: Callable[[Job], None]) -> None:
        job = self._store.get_by_uid(self._uid)
        if job.state is JobState.QUEUED:
            job = self._store.advance(self._uid, JobState.PREPARING)
        if self._stops_at is JobState.RUNNING and job.state is JobState.PREPARING:
            on_running(self._store.advance(self._uid, JobState.RUNNING))
        await asyncio.Event().wait()

    async def end_cancelled(self) -> None:
        self._store.advance(self._uid, JobState.CANCELLED)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    store = JobStore(tmp_path / "jobs.sqlite")
    yield store
    store.close()


def scheduler(
    store: JobStore,
    folder: Path,
    stops_at: JobState,
    capacity: int = 1,
    patience: float = PATIENCE_SECONDS,
) -> Scheduler:
    folders: dict[str, JobFolder] = {}

    def make(uid: str) -> Any:
        return IdleRun(store, uid, stops_at)

    return Scheduler(
        store,
        make,
        lambda uid: folders.setdefault(uid, JobFolder(folder / uid)),
        capacity=capacity,
        patience=patience,
    )


def create(store: JobStore, job_id: str, **scheduling: str) -> Job:
    return store.create("p", job_id, labels={}, training_input={"scheduling": scheduling})


async def ended(store: JobStore, job: Job) -> Job:
    async with asyncio.timeout(10):
        while not (now := store.get_by_uid(job.uid)).state.is_terminal:
            await asyncio.sleep(0.005)
    return now


@pytest.mark.parametrize("stops_at", [JobState.PREPARING, JobState.RUNNING], ids=str)
async def test_max_wait_time_ends_with_the_first_running(
    store: JobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops_at: JobState
) -> None:
    queue = scheduler(store, tmp_path, stops_at)
    with monkeypatch.context() as clock:
        clock.setattr(job_store.time, "time", lambda: 1_000_000.0)
        job = create(store, "a", maxWaitTime="1800s")

    async with queue.running():
        if stops_at is JobState.PREPARING:
            job = await ended(store, job)
            assert job.state is JobState.CANCELLED
            assert "scheduling.maxWaitTime of 1800s passed before it ran" in job.error_message
        else:
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert store.get_by_uid(job.uid).state is JobState.RUNNING


async def test_max_running_time_goes_on_over_a_new_start(
    store: JobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = create(store, "a", maxRunningTime="3600s")
    store.advance(job.uid, JobState.PREPARING)
    with monkeypatch.context() as clock:
        clock.setattr(job_store.time, "time", lambda: 1_000_000.0)
        store.advance(job.uid, JobState.RUNNING)

    async with scheduler(store, tmp_path, JobState.RUNNING).running():
        job = await ended(store, job)

    assert job.state is JobState.CANCELLED
    assert "scheduling.maxRunningTime of 3600s passed while it ran" in job.error_message


async def test_place_of_a_cancelled_job_goes_to_the_next(store: JobStore, tmp_path: Path) -> None:
    queue = scheduler(store, tmp_path, JobState.RUNNING)
    async with queue.running():
        first, second = create(store, "a"), create(store, "b")
        queue.added(first)
        queue.added(second)
        await asyncio.sleep(0)
        assert store.get_by_uid(second.uid).state is JobState.QUEUED

        queue.cancel(first.uid, "by hand")
        assert (await ended(store, first)).error_message == "by hand"
        async with asyncio.timeout(10):
            while store.get_by_uid(second.uid).state is not JobState.RUNNING:
                await asyncio.sleep(0.005)
        await queue.cancel_all("the end")

    assert store.get_by_uid(second.uid).state is JobState.CANCELLED


async def test_stopped_queue_leaves_jobs_as_they_are(store: JobStore, tmp_path: Path) -> None:
    job = create(store, "a")
    async with scheduler(store, tmp_path, JobState.RUNNING).running():
        async with asyncio.timeout(10):
            while store.get_by_uid(job.uid).state is not JobState.RUNNING:
                await asyncio.sleep(0.005)

    assert store.get_by_uid(job.uid).state is JobState.RUNNING


def create_cluster(store: JobStore, job_id: str, workers: int) -> Job:
    counts = {"workerType": "standard", "workerCount": str(workers)} if workers else {}
    return store.create("p", job_id, labels={}, training_input={"masterType": "standard", **counts})


def names(store: JobStore, *states: JobState) -> list[str]:
    return sorted(job.job_id for job in store.in_states(*states))


async def runs(store: JobStore, *job_ids: str) -> bool:
    """Wait until just these jobs run, and see that it stays so."""
    async with asyncio.timeout(10):
        while names(store, JobState.RUNNING) != sorted(job_ids):
            await asyncio.sleep(0.005)
    for _ in range(10):
        await asyncio.sleep(0.005)
    return names(store, JobState.RUNNING) == sorted(job_ids)


async def test_jobs_start_when_all_their_replicas_fit(store: JobStore, tmp_path: Path) -> None:
    queue = scheduler(store, tmp_path, JobState.RUNNING, capacity=4)
    async with queue.running():
        three, second = create_cluster(store, "three", 2), create_cluster(store, "second", 2)
        queue.added(three)
        queue.added(second)
        assert await runs(store, "three")

        queue.cancel(three.uid, "by hand")

        assert await runs(store, "second")


async def test_job_larger_than_the_capacity_runs_when_nothing_else_does(
    store: JobStore, tmp_path: Path
) -> None:
    queue = scheduler(store, tmp_path, JobState.RUNNING, capacity=2)
    async with queue.running():
        small, large = create(store, "small"), create_cluster(store, "large", 7)
        queue.added(small)
        queue.added(large)
        assert await runs(store, "small")

        queue.cancel(small.uid, "by hand")
        assert await runs(store, "large")

        queue.added(create(store, "next"))
        assert await runs(store, "large")


async def test_small_jobs_pass_a_large_one_for_a_while_only(
    store: JobStore, tmp_path: Path
) -> None:
    queue = scheduler(store, tmp_path, JobState.RUNNING, capacity=3, patience=0.5)
    async with queue.running():
        first = create(store, "first")
        queue.added(first)
        queue.added(create_cluster(store, "large", 2))
        passing = create(store, "passing")
        queue.added(passing)
        assert await runs(store, "first", "passing")

        await asyncio.sleep(0.6)
        queue.added(create(store, "late"))
        assert await runs(store, "first", "passing")
        queue.cancel(first.uid, "by hand")
        queue.cancel(passing.uid, "by hand")

        assert await runs(store, "large")


async def test_cancelled_job_that_was_queued_takes_no_place(
    store: JobStore, tmp_path: Path
) -> None:
    queue = scheduler(store, tmp_path, JobState.RUNNING, capacity=2)
    async with queue.running():
        queue.added(create(store, "a"))
        large = create_cluster(store, "large", 7)
        queue.added(large)
        queue.cancel(large.uid, "by hand")
        queue.added(create(store, "b"))

        assert await runs(store, "a", "b")


@pytest.mark.parametrize(("text", "seconds"), [("3600s", 3600), ("1.5s", 1.5)])
def test_duration(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "s", "-1s", "1m", "1.0000000001s"])
def test_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration(text)
