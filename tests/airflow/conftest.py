"""One real Airflow and one embedded service for all tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import AirflowCluster
from service import EmbeddedService

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
def airflow(service: EmbeddedService) -> Iterator[AirflowCluster]:
    """Airflow with the example DAGs and those in ``dags``; its connection reaches ``service``."""
    connection = json.dumps(service.connection(BUCKET))
    cluster = AirflowCluster(
        [ROOT / "dags_examples", Path(__file__).parent / "dags"],
        env={
            "AIRFLOW_CONN_AIPTRAINING_DEFAULT": connection,
            "AIRFLOW__AIPTRAINING__DEPLOYMENT": "tests",
        },
    )
    cluster.start()
    try:
        yield cluster
    finally:
        left = cluster.stop()
    assert left == []
