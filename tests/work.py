"""One run of a DAG with one training task on a real Airflow, and the jobs that it made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
from cluster import AirflowCluster
from processes import wait_for
from service import EmbeddedService


@dataclass
class Work:
    """One run of one of the DAGs, and the jobs that it made."""

    airflow: AirflowCluster
    service: EmbeddedService
    dag_id: str
    run_id: str

    def jobs(self) -> dict[str, str]:
        """Return id and state of this run's jobs, by id, so by attempt."""
        mine = {"airflow-dag": self.dag_id, "airflow-run": self.run_id.lower()}
        found = {
            job["jobId"]: job["state"]
            for job in self.service.jobs()
            if mine.items() <= job.get("labels", {}).items()
        }
        return dict(sorted(found.items()))

    def states(self) -> list[str]:
        """Return the states of this run's jobs, by attempt."""
        return list(self.jobs().values())

    def task(self) -> dict[str, Any]:
        """Return the task instance."""
        [instance] = self.airflow.api.task_instances(self.dag_id, self.run_id)
        return instance

    def is_waiting(self) -> bool:
        """Tell whether the job runs and somebody watches it: the worker, or a trigger."""
        if self.states()[-1:] != ["RUNNING"] or self.task()["state"] not in ("running", "deferred"):
            return False
        # A deferred task that no triggerer has picked up yet is given up without anybody knowing.
        return f"Job {list(self.jobs())[-1]} is RUNNING" in self.log()

    def log(self) -> str:
        """Return the log of the task's latest try."""
        number = self.task()["try_number"] or 1
        return self.airflow.api.log(self.dag_id, self.run_id, "train", number)

    def wait_for(self, what: str, condition: Callable[[], bool], timeout: float = 90) -> None:
        """Wait until a condition of this run holds."""
        wait_for(condition, timeout=timeout, interval=0.3, what=lambda: f"{what}: {self.told()}")

    def wait_for_states(self, *states: str, timeout: float = 90) -> None:
        """Wait until the run's jobs, by attempt, are in these states."""
        self.wait_for(
            f"jobs of {self.dag_id} to be {states}",
            lambda: self.states() == list(states),
            timeout=timeout,
        )

    def wait_for_task(self, *states: str, timeout: float = 90) -> str:
        """Wait until the task is in one of these states, and return it."""
        wanted = frozenset(states)
        api = self.airflow.api
        found = api.wait_for_task(self.dag_id, self.run_id, "train", states=wanted, timeout=timeout)
        return str(found["state"])

    def told(self) -> str:
        """Return what there is to know, for a failure."""
        task = self.task()
        told = f"jobs {self.jobs()}, task {task['state']} (try {task['try_number']})"
        return f"{told}\n{self.log()[-3000:]}"

    def end(self, name: str, signum: int) -> None:
        """Send a signal to one of Airflow's components and wait for its end."""
        component = self.airflow.components[name]
        self.airflow.kill(name, signum)
        wait_for(lambda: not component.is_running(), timeout=30, what=f"the {name}'s end")

    def runner(self) -> psutil.Process:
        """Return the process that executes the task: it holds the task's waiting loop."""
        return psutil.Process(int(self.task()["pid"]))

    def supervisor(self) -> psutil.Process:
        """Return the worker's process that started the runner and speaks to Airflow for it."""
        parent = self.runner().parent()
        assert parent is not None
        return parent

    def ledger(self) -> dict[str, Any]:
        """Return the operator's ledger, from Airflow's task state store."""
        return dict(self.airflow.api.get(self._ledger_path())["value"])

    def write_ledger(self, ledger: dict[str, Any]) -> None:
        """Replace the operator's ledger."""
        path = f"/api/v2{self._ledger_path()}"
        self.airflow.api.call("PUT", path, json={"value": ledger, "expires_at": None})

    def _ledger_path(self) -> str:
        task = f"/dags/{self.dag_id}/dagRuns/{self.run_id}/taskInstances/train"
        return f"{task}/state-store/aiptraining_ledger"

    def reap(self) -> list[str]:
        """Have one pass of the reaper cancel orphans; return which of this run's jobs it took."""
        command = [sys.executable, "-m", "airflow_aiptraining.cli", "jobs", "reap", "--cancel"]
        done = subprocess.run(
            [*command, "--grace", "2"],
            env=self.airflow.env,
            cwd=self.airflow.home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said = done.stdout.splitlines()
        return [job_id for job_id in self.jobs() if f"cancelled: {job_id}" in said]

    def mark_run(self, state: str) -> None:
        """Mark the run, as a person does in the UI."""
        path = f"/api/v2/dags/{self.dag_id}/dagRuns/{self.run_id}"
        self.airflow.api.call("PATCH", path, json={"state": state})
