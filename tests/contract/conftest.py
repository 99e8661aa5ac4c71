"""A real embedded service, for the clients that judge it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from embedded import Service, start_service

from airflow_aiptraining.triggers import deferral

pytest.register_assert_rewrite("watching")
from watching import quick, stand_in, trigger  # noqa: E402, F401 - fixtures


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all tests that leave it running; each takes buckets and jobs of its own."""
    running = start_service(tmp_path_factory.mktemp("service") / "data")
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def no_shortest_deferral(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no scheduler here that could be overtaken."""
    monkeypatch.setattr(deferral, "SHORTEST_DEFERRAL", 0.05)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Service]]:
    """Start services over one data directory, one after the other; all end with the test."""
    started: list[Service] = []

    def start_again() -> Service:
        started.append(start_service(tmp_path / "data"))
        return started[-1]

    yield start_again
    for each in started:
        each.stop()
