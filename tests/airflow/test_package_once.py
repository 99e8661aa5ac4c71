"""The example that packages once and trains many models, on a real Airflow."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from cluster import AirflowCluster
from service import EmbeddedService

DAG = "package_once_train_many"


@dataclass(frozen=True)
class Runs:
    """Two runs that have ended: of three good settings, and with one that no trainer takes."""

    good: str
    bad: str


@pytest.fixture(scope="module")
def runs(airflow: AirflowCluster) -> Runs:
    """Both runs, made side by side."""
    airflow.api.wait_for_dags([DAG])
    airflow.api.unpause(DAG)
    runs = Runs(
        airflow.api.trigger(DAG),
        airflow.api.trigger(DAG, conf={"regularization": ["1", "no number"]}),
    )
    for run_id in (runs.good, runs.bad):
        airflow.api.wait_for_run(DAG, run_id, timeout=240)
    return runs


def states(airflow: AirflowCluster, run_id: str, task_id: str) -> list[str]:
    """Return the states of a task's instances, by map index."""
    instances = airflow.api.task_instances(DAG, run_id)
    found = [(ti["map_index"], ti["state"]) for ti in instances if ti["task_id"] == task_id]
    return [state for _, state in sorted(found)]


def test_all_settings_train_from_one_package(
    airflow: AirflowCluster, service: EmbeddedService, runs: Runs
) -> None:
    package = airflow.api.xcom(DAG, runs.good, "package")
    job_ids = [
        airflow.api.xcom(DAG, runs.good, "train", map_index=index)["job_id"] for index in range(3)
    ]
    jobs = {job["jobId"]: job["trainingInput"] for job in service.jobs()}

    assert [name[-7:] for name in job_ids] == ["_m00000", "_m00001", "_m00002"]
    assert [jobs[name]["packageUris"] for name in job_ids] == [[package]] * 3
    assert [jobs[name]["args"][-1] for name in job_ids] == ["0.1", "1", "10"]


def test_the_most_accurate_model_is_exported(airflow: AirflowCluster, runs: Runs) -> None:
    accuracies = {
        verdict["job_id"]: verdict["metrics"]["accuracy"]
        for verdict in (
            airflow.api.xcom(DAG, runs.good, "gate", map_index=index) for index in range(3)
        )
    }
    exported = airflow.api.xcom(DAG, runs.good, "export")

    assert exported["metrics"]["accuracy"] == max(accuracies.values())
    assert accuracies[exported["job_id"]] == max(accuracies.values())


def test_nothing_is_cancelled_while_all_goes_well(airflow: AirflowCluster, runs: Runs) -> None:
    assert airflow.api.run(DAG, runs.good)["state"] == "success"
    assert states(airflow, runs.good, "running_jobs") == ["skipped"]
    assert states(airflow, runs.good, "cancel") == ["skipped"]


def test_a_failed_job_has_the_others_cancelled_and_nothing_exported(
    airflow: AirflowCluster, service: EmbeddedService, runs: Runs
) -> None:
    submitted = airflow.api.xcom(DAG, runs.bad, "running_jobs")

    assert airflow.api.run(DAG, runs.bad)["state"] == "failed"
    assert states(airflow, runs.bad, "cancel") == ["success"] * len(submitted)
    assert states(airflow, runs.bad, "export") == ["upstream_failed"]
    ended = {job["jobId"] for job in service.jobs() if "endTime" in job}
    assert set(submitted) <= ended
