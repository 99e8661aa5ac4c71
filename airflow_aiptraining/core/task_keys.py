"""The task instance that a job was submitted for, written on the job itself.

A job's readable labels (``airflow-dag`` ...) are cut and in lower case, and its owner is a one-way
hash: neither leads back to the task instance.  So the exact ids are kept as well, in base32, over
as many labels as they need.  Whoever has only the job and the deployment's name, a reaper in a
worker for instance, can ask Airflow what became of the task.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass

#: ``airflow-ids-1``, ``airflow-ids-2`` ...
IDS = "airflow-ids-"
_MAX_LABEL = 63
#: Room for three ids of 250 ASCII characters, Airflow's limit; a job has at most 64 labels.
_MOST_LABELS = 20


@dataclass(frozen=True, order=True)
class TaskKey:
    """One task instance over all its tries.

    :param map_index: -1 where the task isn't mapped.
    """

    dag_id: str
    task_id: str
    run_id: str
    map_index: int = -1

    def __str__(self) -> str:
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"{self.dag_id}.{self.task_id}{mapped} of run {self.run_id}"

    def to_labels(self) -> dict[str, str]:
        """Return the labels that hold the ids; none if they are too long (hundreds of non-ASCII
        characters), in which case nobody can find the task again from the job.
        """
        text = json.dumps(astuple(self), ensure_ascii=False, separators=(",", ":"))
        code = base64.b32encode(text.encode()).decode().rstrip("=").lower()
        parts = [code[start : start + _MAX_LABEL] for start in range(0, len(code), _MAX_LABEL)]
        if len(parts) > _MOST_LABELS:
            return {}
        return {f"{IDS}{number}": part for number, part in enumerate(parts, 1)}

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> TaskKey | None:
        """Read the ids of a job's labels; ``None`` where there are none, or they were changed."""
        code = ""
        for number in range(1, _MOST_LABELS + 1):
            if f"{IDS}{number}" not in labels:
                break
            code += labels[f"{IDS}{number}"]
        try:
            text = base64.b32decode(code.upper() + "=" * (-len(code) % 8)).decode()
            dag_id, task_id, run_id, map_index = json.loads(text)
            return cls(str(dag_id), str(task_id), str(run_id), int(map_index))
        except (binascii.Error, TypeError, ValueError):
            return None
