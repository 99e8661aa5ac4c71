"""Stories of single runs on a real Airflow, played side by side: most of a story is waiting.

A story is a generator.  It acts, and yields the condition under which it goes on.  One look at
Airflow and at the training service serves all stories, so that forty of them load a small machine
no more than one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from airflow_api import END_STATES
from cluster import AirflowCluster
from service import EmbeddedService

from airflow_aiptraining.core.task_keys import TaskKey

Condition = Callable[[], bool]
Story = Generator[Condition, None, None]


@dataclass
class Stage:
    """What Airflow and the service said last of all DAGs whose names begin with a prefix.

    :param prefix: of the DAGs' names.
    :param folder: where trainers look for word, see :meth:`Run.tell`.
    :param edited: a DAG bundle, for files that a story writes.
    """

    airflow: AirflowCluster
    service: EmbeddedService
    prefix: str
    folder: Path
    edited: Path
    instances: dict[TaskKey, dict[str, Any]] = field(default_factory=dict)
    jobs: dict[TaskKey, list[dict[str, Any]]] = field(default_factory=dict)
    _begun: int = 0

    def look(self) -> None:
        """Ask Airflow for the task instances and the service for the jobs."""
        found = self.airflow.api.all_task_instances(dag_id_prefix_pattern=self.prefix)
        self.instances = {_key(instance): instance for instance in found}
        self.jobs = {}
        for job in sorted(self.service.jobs(), key=lambda job: str(job["jobId"])):
            key = TaskKey.from_labels(job.get("labels", {}))
            if key is not None and key.dag_id.startswith(self.prefix):
                self.jobs.setdefault(key, []).append(job)

    def ends_noted(self, instance_id: str) -> int:
        """Return how many ends of a try's processes the scheduler has noted."""
        lines = self.airflow.components["scheduler"].log.read_text().splitlines()
        ended = "TaskInstance Finished: "
        return sum(ended in line and f"ti_id={instance_id}" in line for line in lines)

    def begin(self, dag_id: str, *, indices: int = 0) -> Run:
        """Trigger a run.

        :param indices: so many instances of a mapped task; 0 where it isn't mapped.
        """
        self._begun += 1
        run_id = f"{dag_id}-{self._begun}"
        self.airflow.api.unpause(dag_id)
        self.airflow.api.trigger(dag_id, conf={"folder": str(self.folder)}, run_id=run_id)
        return Run(self, dag_id, run_id, tuple(range(indices)) or (-1,))


@dataclass
class Run:
    """One run's training task, or some of its mapped instances.

    Conditions hold if they hold for each of ``indices``.
    """

    stage: Stage
    dag_id: str
    run_id: str
    indices: tuple[int, ...] = (-1,)
    _parts: dict[int, Run] = field(default_factory=dict)
    _end: tuple[str, tuple[str, ...]] | None = None

    def __getitem__(self, index: int) -> Run:
        """Return one mapped instance by itself; it is checked with the whole."""
        part = Run(self.stage, self.dag_id, self.run_id, (index,))
        return self._parts.setdefault(index, part)

    @property
    def keys(self) -> list[TaskKey]:
        """The task instances."""
        return [TaskKey(self.dag_id, "train", self.run_id, index) for index in self.indices]

    def instance(self) -> dict[str, Any]:
        """Return the (only) task instance, as it was seen last."""
        [key] = self.keys
        return self.stage.instances[key]

    # What a story waits for -----------------------------------------------------------------------

    def jobs(self, *states: str) -> Condition:
        """The attempts, in order, are in these states; one that RUNS is awaited by its task."""

        def there() -> bool:
            return all(self._states(key) == list(states) for key in self.keys) and (
                states[-1:] != ("RUNNING",) or all(self._is_awaited(key) for key in self.keys)
            )

        return there

    def task(self, *states: str | None) -> Condition:
        """The task is in one of these states."""
        return lambda: all(self._state(key) in states for key in self.keys)

    def jobs_and_task(self, jobs: tuple[str, ...], *states: str | None) -> Condition:
        """Attempts and task are in these states; nobody need wait for the attempts."""
        task = self.task(*states)
        return lambda: task() and all(self._states(key) == list(jobs) for key in self.keys)

    def has_ended(self, *states: str) -> Condition:
        """The task is in one of these states, and its run has ended.

        Before that a clear may get lost: the scheduler ends the run for the states that it has
        read, and what was cleared meanwhile never runs.
        """
        task, api = self.task(*states), self.stage.airflow.api
        return lambda: task() and api.run(self.dag_id, self.run_id)["state"] in END_STATES

    def ends(self, state: str, *jobs: str) -> Condition:
        """The task has ended; :meth:`check` says whether as it should, with these attempts."""
        self._end = state, jobs
        return self.task("success", "failed", "skipped", "upstream_failed", "removed")

    def _states(self, key: TaskKey) -> list[str]:
        return [str(job["state"]) for job in self.stage.jobs.get(key, ())]

    def _state(self, key: TaskKey) -> str | None:
        state = self.stage.instances.get(key, {}).get("state")
        return None if state is None else str(state)

    def _is_awaited(self, key: TaskKey) -> bool:
        if self._state(key) not in ("running", "deferred"):
            return False
        log = self.log(key)
        # A deferred task that no triggerer has picked up yet isn't awaited by anybody.
        if f"Job {self.stage.jobs[key][-1]['jobId']} is RUNNING" not in log:
            return False
        # Airflow fails a try that it resumes before it has noted that the try was deferred.
        deferrals = log.count("Pausing task as DEFERRED")
        return self.stage.ends_noted(str(self.stage.instances[key]["id"])) >= deferrals

    # What a story does ----------------------------------------------------------------------------

    def tell(self, code: int) -> None:
        """Let the running attempts end with this exit code."""
        for key in self.keys:
            job = self.stage.jobs[key][-1]
            file = self.stage.folder / str(job["jobId"])
            half = file.with_suffix(".half")
            half.write_text(str(code))
            half.rename(file)

    def succeed(self) -> None:
        """Let the running attempts succeed."""
        self.tell(0)

    def fail(self) -> None:
        """Let the running attempts fail."""
        self.tell(3)

    def clear(self, **options: Any) -> None:
        """Clear these task instances; see :meth:`AirflowApi.clear`."""
        tasks = ["train" if index < 0 else ("train", index) for index in self.indices]
        self.stage.airflow.api.clear(self.dag_id, self.run_id, tasks, **options)

    def mark(self, state: str) -> None:
        """Mark the task, as a person does in the UI."""
        self.stage.airflow.api.set_state(self.dag_id, self.run_id, "train", state)

    # What is right --------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert the end that was expected, exactly: nothing lost, doubled, overlapping, stale."""
        assert self._end is not None or self._parts
        for part in self._parts.values():
            part.check()
        if self._end is None:
            return
        state, states = self._end
        for key in self.keys:
            jobs = self.stage.jobs.get(key, [])
            assert (self._state(key), self._states(key)) == (state, list(states)), self.told()
            for number, job in enumerate(jobs, 1):
                suffix = f"_a{number:03d}" if number > 1 else ""
                assert job["jobId"] == jobs[0]["jobId"] + suffix
            for earlier, later in pairwise(jobs):
                assert _time(earlier, "endTime") <= _time(later, "createTime"), self.told()
            if state == "success":
                api = self.stage.airflow.api
                result = api.xcom(self.dag_id, self.run_id, "train", map_index=key.map_index)
                assert (result["job_id"], result["state"]) == (jobs[-1]["jobId"], "SUCCEEDED")

    def log(self, key: TaskKey) -> str:
        """Return the log of the latest try."""
        number = self.stage.instances[key]["try_number"] or 1
        return self.stage.airflow.api.log(
            self.dag_id, self.run_id, "train", number, map_index=key.map_index
        )

    def told(self) -> str:
        """Return what there is to know, for a failure."""
        lines = []
        for key in self.keys:
            instance = self.stage.instances.get(key, {})
            lines.append(
                f"{key}: {instance.get('state')}, try {instance.get('try_number')} of "
                f"{instance.get('max_tries')}"
            )
            for job in self.stage.jobs.get(key, ()):
                times = f"{job.get('createTime')} to {job.get('endTime')}"
                lines.append(f"  {job['jobId']} {job['state']} {times}")
            lines.append(self.log(key)[-2500:] if instance else "no task instance")
        return "\n".join(lines)


def _key(instance: Mapping[str, Any]) -> TaskKey:
    return TaskKey(
        instance["dag_id"], instance["task_id"], instance["dag_run_id"], instance["map_index"]
    )


def _time(job: Mapping[str, Any], name: str) -> datetime:
    return datetime.fromisoformat(job[name])


# Playing --------------------------------------------------------------------------------------


@dataclass
class Play:
    """A story that is told.

    :param stage: where it is played.
    :param tell: makes the story's generator.
    :param takes_worker: its task keeps one of Airflow's few worker processes busy.
    """

    name: str
    stage: Stage
    tell: Callable[[Play], Story]
    takes_worker: bool = False
    runs: list[Run] = field(default_factory=list)
    failure: BaseException | None = None
    seconds: float = 0.0

    def begin(self, dag_id: str, *, indices: int = 0) -> Run:
        """Trigger a run; see :meth:`Stage.begin`."""
        run = self.stage.begin(dag_id, indices=indices)
        self.runs.append(run)
        return run

    def check(self) -> None:
        """Assert that the story came to its end, and that this is the right one."""
        if self.failure is not None:
            raise self.failure
        assert self.runs
        for run in self.runs:
            run.check()


def perform(
    stage: Stage, plays: list[Play], *, at_once: int = 12, workers: int = 2, patience: float = 240
) -> None:
    """Play all stories to their ends; what went wrong in one is kept in its ``failure``.

    :param at_once: so many at a time ...
    :param workers: ... of which so many keep a worker busy.
    :param patience: seconds that a condition may take.
    """
    waiting, active = deque(plays), list[_Scene]()
    while waiting or active:
        for play in list(waiting):
            busy = sum(scene.play.takes_worker for scene in active)
            if len(active) < at_once and not (play.takes_worker and busy >= workers):
                waiting.remove(play)
                active.append(_Scene(play))
        stage.look()
        active = [scene for scene in active if scene.goes_on(patience)]
        time.sleep(0.5)
    stage.look()


class _Scene:
    """Where a story stands."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self._story = play.tell(play)
        self._condition: Condition = lambda: True
        self._began = self._since = time.monotonic()

    def goes_on(self, patience: float) -> bool:
        """Take one step if the story's condition holds; tell whether the story isn't over."""
        now = time.monotonic()
        self.play.seconds = now - self._began
        try:
            # One step a look: what was seen before an action is no answer to it.
            if self._condition():
                self._condition = next(self._story)
                self._since = now
            elif now - self._since > patience:
                told = "\n".join(run.told() for run in self.play.runs)
                raise TimeoutError(f"waited {patience:.0f} s in vain; {told}")
        except StopIteration:
            return False
        except Exception as error:  # kept: the other stories go on
            self.play.failure = error
            self._story.close()
            return False
        return True
