"""Triggers that wait for jobs of a stand-in, and what they tell: for the tests of the watch."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ml_stand_in import StandIn

from airflow_aiptraining.triggers import budget, listing, rounds
from airflow_aiptraining.triggers.training_job import AIPTrainingJobTrigger
from airflow_aiptraining.triggers.watch import JobWatch

CONN = "aiptraining_watch"
#: A trigger that is waiting.
Running = asyncio.Task[list[dict[str, Any]]]


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """A service without jobs."""
    with StandIn() as running:
        yield running


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults last for moments here, and a budget is tested where it is meant."""
    budget.process_budget.cache_clear()
    monkeypatch.setenv("AIRFLOW__AIPTRAINING__REQUEST_BUDGET", "100000")
    monkeypatch.setattr(budget, "FIRST_LOOK", 0.1)
    for module in (listing, rounds):
        monkeypatch.setattr(module, "backoff", lambda error, _: error.retry_after or 0.02)


@pytest.fixture
def trigger(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Make triggers that wait for jobs of the stand-in."""
    return trigger_maker(stand_in.url, "p", monkeypatch)


def trigger_maker(url: str, project: str, patched: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return what makes triggers that wait for jobs of a service."""
    set_connection(CONN, url, project, patched)

    def make(job_id: str, **changes: Any) -> AIPTrainingJobTrigger:
        facts = {"project_id": project, "service": "ml_v1", "api_endpoint": url}
        made = AIPTrainingJobTrigger(
            **{"job_id": job_id, "gcp_conn_id": CONN, "poll_interval": 0.03, **facts, **changes}
        )
        made._log = logging.getLogger("trigger")
        return made

    return make


def set_connection(name: str, url: str, project: str, patched: pytest.MonkeyPatch) -> None:
    """Make an Airflow connection that leads to a service."""
    extra = {"service": "ml_v1", "api_endpoint": url, "project": project, "is_anonymous": True}
    connection = {"conn_type": "aiptraining", "extra": extra}
    patched.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))


def event(trigger: AIPTrainingJobTrigger, **facts: Any) -> dict[str, Any]:
    """Return an event of a trigger."""
    place = ("job_id", "project_id", "service", "api_endpoint")
    return {name: getattr(trigger, name) for name in place} | facts


async def events_of(trigger: AIPTrainingJobTrigger) -> list[dict[str, Any]]:
    """Run a trigger to its end, and return its events."""
    return [event.payload async for event in trigger.run()]


def start(triggers: list[AIPTrainingJobTrigger]) -> list[Running]:
    """Run triggers side by side."""
    return [asyncio.ensure_future(events_of(each)) for each in triggers]


async def stop(running: list[Running]) -> None:
    """Cancel triggers, and wait for their end."""
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def until(what: Callable[[], Any], seconds: float = 120.0) -> None:
    """Return when something has come true."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "This did not come true in time."
        await asyncio.sleep(0.01)


async def watches() -> list[JobWatch]:
    """Return the watches that there are, once there is one."""
    await until(lambda: JobWatch._shared)
    return list(JobWatch._shared.values())


def finish(stand_in: StandIn, seed: int = 1) -> dict[str, str]:
    """End all jobs, each in a state of its own; return these."""
    draw = random.Random(seed)
    for job_id in stand_in.states:
        stand_in.states[job_id] = draw.choice(["SUCCEEDED", "FAILED", "CANCELLED"])
    return dict(stand_in.states)


async def ended_as(
    stand_in: StandIn, triggers: list[AIPTrainingJobTrigger], running: list[Running]
) -> None:
    """End all jobs; every trigger must tell its own job's end, once."""
    states = finish(stand_in)
    assert await asyncio.wait_for(asyncio.gather(*running), 120) == [
        [event(each, event="ended", state=states[each.job_id])] for each in triggers
    ]
