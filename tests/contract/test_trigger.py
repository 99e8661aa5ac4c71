"""The trigger, against the embedded service: its events, compared whole."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from embedded import Service

from airflow_aiptraining.exceptions import TransientServiceError
from airflow_aiptraining.hooks.training import AIPTrainingHook
from airflow_aiptraining.services.ml_v1 import MLv1Service
from airflow_aiptraining.triggers import deferral, rounds, training_job, waiter
from airflow_aiptraining.triggers.service_calls import ServiceCalls
from airflow_aiptraining.triggers.training_job import AIPTrainingJobTrigger
from airflow_aiptraining.triggers.watch import JobWatch

CONN = "aiptraining_trigger"


@pytest.fixture
def ml(service: Service, monkeypatch: pytest.MonkeyPatch) -> MLv1Service:
    extra = {"service": "local", "api_endpoint": service.url}
    monkeypatch.setenv(
        f"AIRFLOW_CONN_{CONN.upper()}", json.dumps({"conn_type": "aiptraining", "extra": extra})
    )
    return AIPTrainingHook(CONN).get_service()


@pytest.fixture
def trigger(ml: MLv1Service) -> Callable[..., AIPTrainingJobTrigger]:
    def make(**changes: Any) -> AIPTrainingJobTrigger:
        facts = {
            "job_id": "j_1",
            "project_id": ml.project_id,
            "service": "local",
            "api_endpoint": ml.api_endpoint,
            "gcp_conn_id": CONN,
            "poll_interval": 0.05,
            **changes,
        }
        return AIPTrainingJobTrigger(**facts)

    return make


class Answers:
    """What the service answers, one after the other: states that no test can hold a job in."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), 0

    def install(self, patched: pytest.MonkeyPatch) -> Answers:
        patched.setattr(MLv1Service, "get_job", lambda _, job_id: self.answer(job_id))
        return self

    def answer(self, job_id: str) -> dict[str, Any]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {"jobId": job_id, "state": answer}


async def events_of(trigger: AIPTrainingJobTrigger) -> list[dict[str, Any]]:
    events: AsyncIterator[Any] = trigger.run()
    return [event.payload async for event in events]


def event(trigger: AIPTrainingJobTrigger, **facts: Any) -> dict[str, Any]:
    place = ("job_id", "project_id", "service", "api_endpoint")
    return {name: getattr(trigger, name) for name in place} | facts


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED", "CANCELLED"])
@pytest.mark.parametrize(
    "before", ["QUEUED", "PREPARING", "RUNNING", "CANCELLING", "STATE_UNSPECIFIED", "NEW_WORD"]
)
async def test_waits_through_every_state_and_tells_the_end(
    trigger: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, before: str, state: str
) -> None:
    answers = Answers(before, before, state).install(monkeypatch)
    waiting = trigger()

    assert await events_of(waiting) == [event(waiting, event="ended", state=state)]
    assert answers.asked == 3


async def test_job_that_ends_at_once_does_not_overtake_the_scheduler(
    trigger: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferral, "SHORTEST_DEFERRAL", 1.0)
    Answers("SUCCEEDED").install(monkeypatch)
    waiting, began = trigger(), time.monotonic()

    assert await events_of(waiting) == [event(waiting, event="ended", state="SUCCEEDED")]
    assert time.monotonic() - began >= 1.0


async def test_blips_never_fail_a_healthy_job(
    trigger: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rounds, "backoff", lambda error, failures: 0.01)
    monkeypatch.setattr(waiter, "REMINDER", 0.0)
    blip = TransientServiceError("Reading job 'j_1': HTTP 503", status=503)
    Answers("RUNNING", blip, blip, "RUNNING", blip, "SUCCEEDED").install(monkeypatch)
    waiting = trigger()
    waiting._log = logging.getLogger("trigger")

    assert await events_of(waiting) == [event(waiting, event="ended", state="SUCCEEDED")]
    told = [
        record.getMessage() for record in caplog.records if "not answered" in record.getMessage()
    ]
    assert len(told) == 3 and "since" in told[0] and "j_1" in told[0]


async def test_deadline_is_an_event(
    trigger: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Answers("RUNNING").install(monkeypatch)
    waiting = trigger(deadline=time.time() + 0.2, poll_interval=60.0)

    assert await events_of(waiting) == [event(waiting, event="timeout", state="RUNNING")]


async def test_job_that_ended_before_its_deadline_passed_unseen_has_ended(
    trigger: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No triggerer was there when the deadline passed."""
    Answers("SUCCEEDED").install(monkeypatch)
    waiting = trigger(deadline=time.time() - 3600)

    assert await events_of(waiting) == [event(waiting, event="ended", state="SUCCEEDED")]


async def test_unknown_job_is_an_error_that_names_it(
    trigger: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiter, "UNKNOWN_LIMIT", 0.2)
    waiting = trigger(job_id="nobody_made_me")

    [told] = await events_of(waiting)

    assert told["event"] == "error"
    assert "'nobody_made_me'" in told["message"] and "404" in told["message"]


def test_round_trip_keeps_connection_impersonation_and_deadline(
    trigger: Callable[..., Any],
) -> None:
    first = trigger(
        impersonation_chain=["a@p.iam.gserviceaccount.com", "b@p.iam.gserviceaccount.com"],
        region="europe-west1",
        deadline=1.5,
        cancel_on_kill=False,
    )
    path, arguments = first.serialize()
    again = AIPTrainingJobTrigger(**json.loads(json.dumps(arguments)))

    assert path == "airflow_aiptraining.triggers.training_job.AIPTrainingJobTrigger"
    assert again.serialize() == first.serialize()
    assert again._watch_key() == first._watch_key()
    assert again._watch_key().impersonation_chain == tuple(first.impersonation_chain)


def test_trigger_of_an_earlier_version_loads(trigger: Callable[..., Any]) -> None:
    arguments = trigger().serialize()[1]
    for later in ("region", "deadline", "cancel_on_kill", "impersonation_chain"):
        del arguments[later]

    assert AIPTrainingJobTrigger(**arguments).cancel_on_kill is True


async def test_waiters_of_one_place_share_one_watch(
    trigger: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    make = ServiceCalls._make_service
    monkeypatch.setattr(ServiceCalls, "_make_service", lambda calls: made.append(1) or make(calls))
    Answers(*["RUNNING"] * 30, "SUCCEEDED").install(monkeypatch)

    await asyncio.gather(*(events_of(trigger(job_id=f"j_{n}")) for n in range(10)))

    assert len(made) == 1
    assert JobWatch._shared == {}


@pytest.mark.parametrize(
    ("given_up", "cancel_on_kill", "cancelled"),
    [(True, True, ["j_1"]), (False, True, []), (True, False, [])],
    ids=["given up", "still wanted", "not wanted by the author"],
)
async def test_on_kill_cancels_only_what_was_given_up(
    trigger: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    given_up: bool,
    cancel_on_kill: bool,
    cancelled: list[str],
) -> None:
    """Airflow cancels the coroutine again about every second while it works."""
    calls: list[str] = []

    def cancel(service: MLv1Service, job_id: str) -> None:
        time.sleep(0.5)
        calls.append(job_id)

    monkeypatch.setattr(MLv1Service, "cancel_job", cancel)
    monkeypatch.setattr(training_job, "task_was_given_up", lambda *_: given_up)
    waiting = trigger(cancel_on_kill=cancel_on_kill)
    waiting.task_instance = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)

    killing = asyncio.ensure_future(waiting.on_kill())
    for _ in range(3):
        await asyncio.sleep(0.1)
        killing.cancel()
    await killing

    assert calls == cancelled


async def test_on_kill_that_takes_too_long_for_airflow_cancels_the_job_later(
    trigger: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first question that a triggerer asks Airflow may take longer than ``on_kill`` may."""
    calls: list[str] = []

    def ask(*_: object) -> bool:
        time.sleep(0.5)
        return True

    monkeypatch.setattr(training_job, "ON_KILL_LIMIT", 0.1)
    monkeypatch.setattr(training_job, "task_was_given_up", ask)
    monkeypatch.setattr(MLv1Service, "cancel_job", lambda _, job_id: calls.append(job_id))
    waiting = trigger()
    waiting.task_instance = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)

    await waiting.on_kill()
    assert calls == []
    await asyncio.gather(*training_job._cancelling)
    assert calls == ["j_1"]
    assert training_job._cancelling == set()
