from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from airflow_aiptraining.core.states import JobState

#: state -> (is_terminal, is_active, is_successful)
MEANINGS = {
    JobState.STATE_UNSPECIFIED: (False, False, False),
    JobState.QUEUED: (False, True, False),
    JobState.PREPARING: (False, True, False),
    JobState.RUNNING: (False, True, False),
    JobState.SUCCEEDED: (True, False, True),
    JobState.FAILED: (True, False, False),
    JobState.CANCELLING: (False, False, False),
    JobState.CANCELLED: (True, False, False),
}


def test_every_state_has_a_row() -> None:
    assert set(MEANINGS) == set(JobState)


@pytest.mark.parametrize(("state", "meaning"), MEANINGS.items())
def test_state_means_what_its_row_says(state: JobState, meaning: tuple[bool, bool, bool]) -> None:
    assert (state.is_terminal, state.is_active, state.is_successful) == meaning


@pytest.mark.parametrize("state", JobState)
def test_state_is_read_from_a_job(state: JobState) -> None:
    assert JobState.of({"jobId": "a", "state": state.value}) is state


@pytest.mark.parametrize(
    "job",
    [{}, {"state": None}, {"state": ""}, {"state": "PAUSED"}, {"state": 3}, {"state": []}],
    ids=str,
)
def test_a_missing_or_unknown_state_is_never_an_end(job: dict[str, Any]) -> None:
    state = JobState.of(job)

    assert state is JobState.STATE_UNSPECIFIED
    assert not state.is_terminal
    assert not state.is_successful


def test_a_state_is_its_own_text() -> None:
    assert f"{JobState.RUNNING}" == JobState.RUNNING == "RUNNING"


@pytest.mark.parametrize("module", ["states", "machines", "trials", "spelling", "gs_uris"])
def test_light_modules_import_neither_pydantic_nor_yaml(module: str) -> None:
    code = (
        f"import sys, airflow_aiptraining.core.{module}\n"
        "print({'pydantic', 'yaml', 'airflow', 'googleapiclient'} & set(sys.modules))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"
