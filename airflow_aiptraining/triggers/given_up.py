"""Has Airflow given up this task?  Asked before a running job is cancelled.

``on_kill`` is not that word: it also comes for a drained node, a stopping worker, missed heartbeats
and a triggerer that was frozen and resumed (all measured on Airflow 3.3), while the task goes on
elsewhere and counts on its job.
"""

from __future__ import annotations

import logging

from airflow_aiptraining.core.reaping import ENDED_RUN_STATES, ENDED_STATES, Absent, TaskState
from airflow_aiptraining.core.task_keys import TaskKey

log = logging.getLogger(__name__)

#: States of a task instance that no longer wants its job.  One that is restarting was cleared: its
#: next try would cancel the job anyway.
GIVEN_UP = ENDED_STATES | {"restarting"}


def task_state(task: TaskKey) -> TaskState:
    """Ask Airflow, as a task or a trigger may: by its execution API."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    try:
        states = RuntimeTaskInstance.get_task_states(
            dag_id=task.dag_id,
            task_ids=[task.task_id],
            run_ids=[task.run_id],
            map_index=task.map_index,
        )
    except Exception as error:  # no answer is an answer here, whatever its kind
        log.warning("Airflow doesn't tell the state of %s (%s).", task, error)
        return Absent.NO_ANSWER
    # Source: get_task_instance_states of Airflow's execution API.
    mapped = f"_{task.map_index}" if task.map_index >= 0 else ""
    state: TaskState = states.get(task.run_id, {}).get(f"{task.task_id}{mapped}", Absent.GONE)
    if state is None and _run_has_ended(task):
        return Absent.RUN_ENDED
    return state if state is None or isinstance(state, Absent) else str(state)


def _run_has_ended(task: TaskKey) -> bool:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    try:
        state = RuntimeTaskInstance.get_dagrun_state(task.dag_id, task.run_id)
    except Exception as error:  # as above; in a triggerer it can't be asked
        log.info("Airflow doesn't tell the state of the run of %s (%s).", task, error)
        return False
    return state in ENDED_RUN_STATES


def task_was_given_up(dag_id: str, run_id: str, task_id: str, map_index: int) -> bool:
    """Ask Airflow whether a task instance still wants its job.

    :return: ``True`` if the task has ended, is being restarted by a clear, or its row is gone;
        ``False`` if it goes on (running, deferred, queued, up for retry ...), has no state, or
        Airflow doesn't answer: the next try then attaches to the job, or a reaper finds it.
    """
    task = TaskKey(dag_id, task_id, run_id, map_index)
    state = task_state(task)
    given_up = state is Absent.GONE or (isinstance(state, str) and state in GIVEN_UP)
    log.info(
        "State of %s: %s, so it was %s.",
        task,
        state.value if isinstance(state, Absent) else state or "none",
        "given up" if given_up else "not given up",
    )
    return given_up
