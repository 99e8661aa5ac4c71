"""Has Airflow given up this task?  Asked before a running job is cancelled.

``on_kill`` is not that word: it also comes for a drained node, a stopping worker, missed heartbeats
and a triggerer that was frozen and resumed (all measured on Airflow 3.3), while the task goes on
elsewhere and counts on its job.
"""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)

#: States of a task instance that no longer wants its job.
GIVEN_UP = frozenset({"failed", "success", "skipped", "removed", "upstream_failed", "restarting"})


def task_was_given_up(dag_id: str, run_id: str, task_id: str, map_index: int) -> bool:
    """Ask Airflow for the task instance's state.

    :return: ``True`` if the task has ended, is being restarted by a clear, or its row is gone;
        ``False`` if it goes on (running, deferred, queued, up for retry ...), has no state, or
        Airflow doesn't answer: the next try then attaches to the job.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    try:
        states: dict[str, Any] = RuntimeTaskInstance.get_task_states(
            dag_id=dag_id, task_ids=[task_id], run_ids=[run_id], map_index=map_index
        )
    except Exception as error:  # no answer is an answer here, whatever its kind
        log.warning("Airflow doesn't say whether task %s was given up (%s).", task_id, error)
        return False
    key = task_id if map_index < 0 else f"{task_id}_{map_index}"
    of_run = states.get(run_id, {})
    if key not in of_run:
        return True
    return of_run[key] is not None and str(of_run[key]) in GIVEN_UP
