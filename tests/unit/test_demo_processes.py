"""Whose processes the demo and the tests end."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import end_processes_of, processes_of, wait_for


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., int]]:
    running = []

    def run(title: str, env: dict[str, str], cwd: Path = tmp_path) -> int:
        argv = [title, "600"]
        process = subprocess.Popen(argv, executable="/bin/sleep", env=env, cwd=cwd)
        running.append(process)
        return process.pid

    yield run
    for process in running:
        process.kill()
        process.wait()


def test_processes_are_found_by_environment_or_as_airflow_at_work_there(
    tmp_path: Path, start: Callable[..., int]
) -> None:
    """Airflow's processes write their title over their environment."""
    ours = {start("sleep", {"AIRFLOW_HOME": str(tmp_path)}), start("airflow api_server --", {})}
    start("sleep", {})  # somebody's own, in the same directory
    start("airflow scheduler --", {}, Path("/"))  # another Airflow's

    assert {process.pid for process in processes_of(tmp_path)} == ours


def test_all_of_them_are_ended(tmp_path: Path, start: Callable[..., int]) -> None:
    start("airflow worker --", {})
    wait_for(lambda: processes_of(tmp_path), timeout=10, what="the process")

    assert end_processes_of(tmp_path) == []
    assert processes_of(tmp_path) == []
