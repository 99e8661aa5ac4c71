"""One real Airflow and one embedded service for all tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import AirflowCluster
from service import EmbeddedService
from work import Work

ROOT = Path(__file__).resolve().parent.parent.parent
BUCKET = "test-bucket"


@pytest.fixture(scope="session")
def service() -> Iterator[EmbeddedService]:
    """The embedded training service, with an empty bucket."""
    # Jobs that hang on purpose must not keep others waiting.
    service = EmbeddedService(options=["--capacity", "16"])
    service.start()
    try:
        service.storage_client().create_bucket(BUCKET)
        yield service
    finally:
        left = service.stop()
    assert left == []


@pytest.fixture(scope="session")
def edited_dags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DAG bundle of its own, for files that a test writes and edits."""
    return tmp_path_factory.mktemp("edited")


@pytest.fixture(scope="session")
def airflow(service: EmbeddedService, edited_dags: Path) -> Iterator[AirflowCluster]:
    """Airflow with the example DAGs and those in ``dags``; its connection reaches ``service``."""
    connection = json.dumps(service.connection(BUCKET))
    cluster = AirflowCluster(
        [ROOT / "dags_examples", Path(__file__).parent / "dags", edited_dags],
        env={
            "AIRFLOW_CONN_AIPTRAINING_DEFAULT": connection,
            "AIRFLOW__AIPTRAINING__DEPLOYMENT": "tests",
            # What has died is noticed within half a minute instead of five.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "25",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
        },
        # Tasks that wait in a worker must not keep others waiting.
        parallelism=8,
    )
    cluster.start()
    try:
        yield cluster
    finally:
        left = cluster.stop()
    assert left == []


@pytest.fixture(scope="session")
def submit(airflow: AirflowCluster, service: EmbeddedService) -> Iterator[Callable[..., Work]]:
    """Start a run of a DAG whose task ``train`` waits for its running job.

    The run is failed when all tests have ended, so that its job doesn't run on.
    """
    made: list[Work] = []

    def start(dag_id: str, seconds: int = 600, *, is_waiting: bool = True) -> Work:
        airflow.api.wait_for_dags([dag_id])
        airflow.api.unpause(dag_id)
        run_id = f"{dag_id}-{len(made)}"
        airflow.api.trigger(dag_id, conf={"seconds": seconds}, run_id=run_id)
        work = Work(airflow, service, dag_id, run_id)
        made.append(work)
        if is_waiting:
            work.wait_for("a waiting task", work.is_waiting)
        return work

    yield start
    for work in made:
        if work.task()["state"] not in ("success", "failed", "skipped"):
            work.mark_run("failed")
