"""People who clear tasks or mark them failed while everything else happens."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

import httpx
from airflow_api import AirflowApi, AirflowApiError
from verdict import CLEARED, MARKED_FAILED, PersonsEvent

from airflow_aiptraining.core.task_keys import TaskKey

#: States in which a task is touched; one of the first group most of the time.
UNDER_WAY = ("running", "deferred")
DONE = ("success",)


class People:
    """Does something to so many task instances, to each at most once.

    :param dag_id: whose task instances.
    :param seed: the same one draws the same deeds and pauses.
    :param most: task instances that are touched.
    :param pauses: seconds between two deeds, at least and at most.
    :param training: gives the task instances whose job runs now: tasks under way are mostly touched
        then.
    """

    def __init__(
        self,
        api: AirflowApi,
        dag_id: str,
        seed: int,
        most: int,
        pauses: tuple[float, float],
        training: Callable[[], list[TaskKey]],
    ) -> None:
        self._api = api
        self._training = training
        self._dag_id = dag_id
        self._random = random.Random(f"people {seed}")
        self._most = most
        self._pauses = pauses
        self._next = time.monotonic() + self._random.uniform(*pauses)
        self.events: dict[TaskKey, PersonsEvent] = {}

    def go_on(self) -> None:
        """Do what is due; call it only while the api-server is there."""
        if len(self.events) >= self._most or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._random.uniform(*self._pauses)
        states = UNDER_WAY if self._random.random() < 0.7 else DONE
        marks = states == UNDER_WAY and self._random.random() < 0.3
        hasty = self._random.random() < 0.2
        pick = self._random.random()
        try:
            found = self._instances(states)
        except (AirflowApiError, httpx.HTTPError):
            return
        if states == UNDER_WAY and not hasty:
            training = self._training()
            found = [each for each in found if each[0] in training]
        if found:
            task, state = found[int(pick * len(found))]
            self._do(MARKED_FAILED if marks else CLEARED, task, state)

    def by_kind(self) -> dict[str, int]:
        """Return how often what was done to tasks in which states."""
        return dict(Counter(f"{event.what} while {event.state}" for event in self.events.values()))

    def _instances(self, states: tuple[str, ...]) -> list[tuple[TaskKey, str]]:
        path = f"/api/v2/dags/{self._dag_id}/dagRuns/~/taskInstances"
        answer = self._api.call_once("GET", path, params={"state": states, "limit": 100})
        found = []
        for ti in answer["task_instances"]:
            task = TaskKey(self._dag_id, ti["task_id"], ti["dag_run_id"], ti["map_index"])
            if task not in self.events:
                found.append((task, ti["state"]))
        return found

    def _do(self, what: str, task: TaskKey, state: str) -> None:
        path = f"/api/v2/dags/{self._dag_id}"
        at = time.time()
        try:
            if what == CLEARED:
                mapped = task.map_index >= 0
                body = {
                    "dry_run": False,
                    "dag_run_id": task.run_id,
                    "task_ids": [[task.task_id, task.map_index] if mapped else task.task_id],
                    "only_failed": False,
                    "reset_dag_runs": True,
                }
                self._api.call_once("POST", f"{path}/clearTaskInstances", json=body, timeout=20)
            else:
                path += f"/dagRuns/{task.run_id}/taskInstances/{task.task_id}"
                path += f"/{task.map_index}" if task.map_index >= 0 else ""
                self._api.call_once("PATCH", path, json={"new_state": "failed"}, timeout=20)
            answered = True
        except (AirflowApiError, httpx.HTTPError):
            answered = False
        self.events[task] = PersonsEvent(what, state, at, answered)
        print(f"  a person {what} {task}, {state}{'' if answered else ', no answer'}", flush=True)
