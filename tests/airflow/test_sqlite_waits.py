"""The tests' Airflow stands on SQLite, which has one writer at a time."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from airflow_api import AirflowApiError
from cluster import AirflowCluster


@pytest.mark.long
def test_calls_that_write_side_by_side_do_not_stop_the_api_server(airflow: AirflowCluster) -> None:
    def write(number: int) -> float:
        began = time.monotonic()
        # A refusal is an answer, too: the call can be sent again.
        with contextlib.suppress(AirflowApiError):
            airflow.api.trigger("untold", run_id=f"written-{number}")
        return time.monotonic() - began

    airflow.api.wait_for_dags(["untold"])
    with ThreadPoolExecutor(8) as threads:
        seconds = list(threads.map(write, range(40)))

    # Writers wait for 30 s at most, and would wait that long for one who waits for them.
    assert max(seconds) < 29
