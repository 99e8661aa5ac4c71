"""``airflow dags test`` runs triggers inline: with no triggerer, no task instance, its own loop."""

from __future__ import annotations

import pytest
from cluster import AirflowCluster
from service import EmbeddedService

pytestmark = pytest.mark.long


def jobs_of(service: EmbeddedService, dag_id: str) -> dict[str, str]:
    """Return id and state of a DAG's jobs."""
    return {
        job["jobId"]: job["state"]
        for job in service.jobs()
        if job.get("labels", {}).get("airflow-dag") == dag_id
    }


def test_deferrable_task_trains_once(airflow: AirflowCluster, service: EmbeddedService) -> None:
    before = jobs_of(service, "hangs_deferred")

    output = airflow.run_cli(
        ["dags", "test", "hangs_deferred", "--conf", '{"seconds": 2}'], timeout=400
    )

    made = {k: v for k, v in jobs_of(service, "hangs_deferred").items() if k not in before}
    assert list(made.values()) == ["SUCCEEDED"], output
    [job_id] = made
    assert "running trigger in line" in output and f"Job {job_id} is SUCCEEDED" in output


def test_job_that_fails_fails_the_command_which_names_it(
    airflow: AirflowCluster, service: EmbeddedService
) -> None:
    before = jobs_of(service, "always_fails")

    with pytest.raises(RuntimeError) as told:
        airflow.run_cli(["dags", "test", "always_fails"], timeout=400)

    made = {k: v for k, v in jobs_of(service, "always_fails").items() if k not in before}
    assert list(made.values()) == ["FAILED"]
    assert next(iter(made)) in str(told.value)
