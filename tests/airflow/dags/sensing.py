"""Sensors that wait for a job of something else, in each of Airflow's ways.

Each run's conf names the job: ``{"job_id": "a_1"}``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator
from airflow_aiptraining.sensors.model_export import AIPModelExportSensor
from airflow_aiptraining.sensors.training_job import AIPTrainingJobSensor

START = datetime(2026, 1, 1, tzinfo=UTC)
MODES = {
    "in_worker": {"mode": "poke", "deferrable": False},
    "rescheduled": {"mode": "reschedule", "deferrable": False},
    "deferred": {"deferrable": True},
}


def dag(dag_id: str, **arguments) -> None:
    """Make a DAG with both sensors side by side; a time-out must not use their retries."""
    with DAG(dag_id, schedule=None, start_date=START, params={"job_id": Param("", type="string")}):
        common = {
            "job_id": "{{ params.job_id }}",
            "poke_interval": 2,
            "retries": 2,
            "retry_delay": timedelta(seconds=1),
            **arguments,
        }
        AIPTrainingJobSensor(task_id="job", **common)
        AIPModelExportSensor(task_id="model", settle_time=0, **common)


for name, mode in MODES.items():
    dag(f"senses_{name}", timeout=600, **mode)
    dag(f"senses_{name}_short", timeout=6, **mode)
    dag(f"senses_{name}_lenient", timeout=6, soft_fail=True, **mode)

with DAG("senses_another_attempt", schedule=None, start_date=START):
    AIPTrainingJobOperator(
        task_id="train",
        job_id="sensed_again",
        package_path="stub/trainer",
        module_name="trainer.task",
        scale_tier="basic",
        # {job_id} is each attempt's own id; that of the second ends with _a002.
        args=["--text", "{job_id}", "--fail-unless", "_a002"],
        poll_interval=1,
        deferrable=True,
        retries=1,
        retry_delay=timedelta(seconds=15),
    )
    AIPTrainingJobSensor(
        task_id="job", job_id_base="sensed_again", deferrable=True, poke_interval=2, timeout=600
    )

with DAG(
    "senses_mapped",
    schedule=None,
    start_date=START,
    params={"job_id": Param("", type="string"), "other": Param("", type="string")},
):
    AIPTrainingJobSensor.partial(
        task_id="job", deferrable=True, poke_interval=2, timeout=600
    ).expand(job_id=["{{ params.job_id }}", "{{ params.other }}"])
