"""A month's backfill loses and doubles nothing."""

from __future__ import annotations

import time
from collections import Counter
from datetime import date, timedelta
from typing import Any

import pytest
from cluster import AirflowCluster
from processes import wait_for
from service import EmbeddedService

from airflow_aiptraining.core.task_keys import TaskKey

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

DAG = "backfilled"
FIRST = date(2020, 3, 1)
DAYS = [FIRST + timedelta(days=number) for number in range(30)]
#: Task, map index, and what follows the date in the job's id.
WORK = [
    ("in_worker", -1, ""),
    ("deferred", -1, ""),
    ("deferred_too", -1, ""),
    ("mapped", 0, "_m00000"),
    ("mapped", 1, "_m00001"),
]


def backfill(airflow: AirflowCluster) -> float:
    """Run the month's backfill by the command line; return the seconds that it took."""
    began = time.monotonic()
    month = f"--from-date {DAYS[0]} --to-date {DAYS[-1]}"
    command = f"backfill create --dag-id {DAG} --max-active-runs 8 --reprocess-behavior none"
    airflow.run_cli([*command.split(), *month.split()], timeout=300)
    latest = max(item["id"] for item in airflow.api.backfills(DAG))
    wait_for(
        lambda: airflow.api.backfill_is_over(latest),
        timeout=1800,
        interval=2,
        what=lambda: f"the end of the backfill; {states(airflow)}",
    )
    return time.monotonic() - began


def states(airflow: AirflowCluster) -> Counter[str]:
    """Return how many task instances are in which state."""
    found = airflow.api.all_task_instances(dag_id_prefix_pattern=DAG)
    return Counter(str(instance["state"]) for instance in found)


@pytest.fixture(scope="module")
def jobs(airflow: AirflowCluster, service: EmbeddedService) -> list[dict[str, Any]]:
    """The jobs of the month, backfilled once."""
    airflow.api.wait_for_dags([DAG])
    airflow.api.unpause(DAG)
    print(f"the backfill took {backfill(airflow):.0f} s")
    return jobs_of(service)


def jobs_of(service: EmbeddedService) -> list[dict[str, Any]]:
    """Return this DAG's jobs, by id."""
    found = [job for job in service.jobs() if job.get("labels", {}).get("airflow-dag") == DAG]
    return sorted(found, key=lambda job: str(job["jobId"]))


def test_each_piece_of_work_has_one_job_that_succeeded(jobs: list[dict[str, Any]]) -> None:
    expected = {
        TaskKey(DAG, task_id, f"backfill__{day}T00:00:00+00:00", map_index): (
            f"bf_{task_id}_{day:%Y%m%d}_000000{suffix}",
            "SUCCEEDED",
        )
        for day in DAYS
        for task_id, map_index, suffix in WORK
    }

    assert len(jobs) == 150
    assert {TaskKey.from_labels(job["labels"]): (job["jobId"], job["state"]) for job in jobs} == (
        expected
    )


def test_everything_is_green(airflow: AirflowCluster, jobs: list[dict[str, Any]]) -> None:
    runs = airflow.api.runs(DAG)

    assert Counter(run["state"] for run in runs) == {"success": 30}
    assert states(airflow) == {"success": 150}


def test_ids_sort_by_date(jobs: list[dict[str, Any]]) -> None:
    for task_id, _, suffix in WORK:
        begin = f"bf_{task_id}_2020"
        found = [
            job["labels"]["airflow-run"]
            for job in jobs
            if job["jobId"].startswith(begin) and job["jobId"].endswith(suffix)
        ]
        assert found == sorted(found)
        assert len(found) == 30


def test_the_package_is_uploaded_once_and_built_no_more_when_it_is_there(
    airflow: AirflowCluster, service: EmbeddedService, jobs: list[dict[str, Any]]
) -> None:
    staged = list(service.storage_client().list_blobs("test-bucket", prefix="backfilled/"))
    [package] = staged
    assert {uri for job in jobs for uri in job["trainingInput"]["packageUris"]} == {
        f"gs://test-bucket/{package.name}"
    }
    assert package.metageneration == 1

    # The files: Airflow's API doesn't show the logs of all tries.
    logs = (airflow.home / "logs" / f"dag_id={DAG}").rglob("attempt=*.log")
    builders = sum("is staged: gs://" in log.read_text() for log in logs)
    # Only tasks that began before the first one was done, so at most one in each worker.
    assert 1 <= builders <= 8


def test_the_same_backfill_once_more_makes_no_job(
    airflow: AirflowCluster, service: EmbeddedService, jobs: list[dict[str, Any]]
) -> None:
    backfill(airflow)

    assert jobs_of(service) == jobs
    assert len(airflow.api.runs(DAG)) == 30
