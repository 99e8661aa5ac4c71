"""Date-stamped, legal, deterministic job ids.

``<base>_<YYYYMMDD_HHMMSS>[_r<run hash>][_m<map index>][_a<attempt>]``: a list sorted by name groups
jobs by model, then by date, then by attempt.  Ids are never reused by ML v1, so every attempt at
the same work has an id of its own, and the same attempt always has the same one.

Source of the rules: ML v1 ``Job.jobId`` (letters, digits, underscore; a letter first; at most 128
characters; unique in the project for ever).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_aiptraining.exceptions import InvalidJobIdError

MAX_LENGTH = 128
#: The longest suffix is ``_20261231_235959_r12345678_m00000_a000`` and some room.
MAX_BASE_LENGTH = 88
_READABLE_LENGTH = 81

_LEGAL = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_ILLEGAL_RUN = re.compile(r"[^A-Za-z0-9]+")
_STAMPED = re.compile(
    r"(?P<base>.+)_(?P<stamp>\d{8}_\d{6})(?:_r(?P<run>[0-9a-f]{8}))?"
    r"(?:_m(?P<map>\d{5,}))?(?:_a(?P<attempt>\d{3,}))?\Z"
)
#: Run types whose logical date alone names the run in its DAG.
_DATED_RUN_TYPES = frozenset({"scheduled", "backfill"})


def default_base(dag_id: str, task_id: str) -> str:
    """Return the base made from dag id and task id: legal, and never that of another task.

    :param dag_id: any Airflow dag id, up to 250 characters, dots and dashes included.
    :param task_id: any Airflow task id, task group prefix included.
    :return: a readable part (illegal characters become ``_``) and six hex digits of the original.
    """
    digest = hashlib.sha256(f"{dag_id}\0{task_id}".encode()).hexdigest()[:6]
    readable = _ILLEGAL_RUN.sub("_", f"{dag_id}_{task_id}").strip("_")
    if not readable[:1].isalpha():
        readable = f"job_{readable}".rstrip("_")
    return f"{readable[:_READABLE_LENGTH].rstrip('_')}_{digest}"


def check_base(base: str) -> str:
    """Return ``base`` if job ids can be made from it.

    :raises InvalidJobIdError: it has an illegal character, doesn't start with a letter, or leaves
        no room for date, map index and attempt.
    """
    if not isinstance(base, str) or not _LEGAL.match(base):
        legal = _ILLEGAL_RUN.sub("_", str(base)).strip("_")
        if not legal[:1].isalpha():
            legal = f"job_{legal}".rstrip("_")
        raise InvalidJobIdError(
            f"job_id {base!r} can't be used: a job id has letters, digits and underscores only and "
            f"begins with a letter. Write for example {legal[:MAX_BASE_LENGTH]!r}."
        )
    if len(base) > MAX_BASE_LENGTH:
        raise InvalidJobIdError(
            f"job_id {base!r} has {len(base)} characters; date, map index and attempt are added to "
            f"it and {MAX_LENGTH} are allowed in all, so it may have at most {MAX_BASE_LENGTH}."
        )
    return base


@dataclass(frozen=True)
class WorkId:
    """What a job id says of the work, without the attempt.

    :param base: legal base, see :func:`check_base`.
    :param stamp: the run's logical date, or where it has none, its ``run_after``; aware.
    :param run_hash: eight hex digits of the run id, empty for scheduled and backfilled runs (their
        date names them).
    :param map_index: index of a mapped task's instance; -1 where the task isn't mapped.
    """

    base: str
    stamp: datetime
    run_hash: str = ""
    map_index: int = -1

    def attempt(self, number: int) -> str:
        """Return the job id of the ``number``-th attempt (1, 2, ...) at this work."""
        stamp = self.stamp.astimezone(UTC).strftime("%Y%m%d_%H%M%S")
        parts = [self.base, stamp]
        if self.run_hash:
            parts.append(f"r{self.run_hash}")
        if self.map_index >= 0:
            parts.append(f"m{self.map_index:05d}")
        if number > 1:
            parts.append(f"a{number:03d}")
        return "_".join(parts)


def work_id(
    base: str,
    *,
    run_id: str,
    run_type: str,
    logical_date: datetime | None,
    run_after: datetime,
    map_index: int = -1,
) -> WorkId:
    """Return the work that one task instance stands for.

    :param base: see :func:`check_base`.
    :param run_id: the DAG run's id; hashed into the job id of runs that no date names.
    :param run_type: Airflow's ``DagRunType`` as text: ``scheduled``, ``backfill``, ``manual``, ...
    :param logical_date: aware; ``None`` for runs triggered without one.
    :param run_after: aware; used where there is no logical date.
    :raises InvalidJobIdError: the base isn't legal.
    """
    dated = logical_date is not None and run_type in _DATED_RUN_TYPES
    run_hash = "" if dated else hashlib.sha256(run_id.encode()).hexdigest()[:8]
    return WorkId(check_base(base), logical_date or run_after, run_hash, map_index)


def split(job_id: str) -> tuple[WorkId, int] | None:
    """Return the work and the attempt that a job id made here names, or ``None`` for another's."""
    match = _STAMPED.match(job_id)
    if match is None:
        return None
    try:
        stamp = datetime.strptime(match["stamp"], "%Y%m%d_%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    map_index = int(match["map"]) if match["map"] else -1
    work = WorkId(match["base"], stamp, match["run"] or "", map_index)
    return work, int(match["attempt"] or 1)


def in_words(job_id: str) -> str:
    """Return a job id as messages to people name it: quoted, with its attempt where it has one."""
    found = split(job_id)
    return repr(job_id) if found is None else f"{job_id!r} (attempt {found[1]})"


def fill_in(value: object, job_id: str) -> object:
    """Return ``value`` with every ``{job_id}`` in its strings replaced by the attempt's id.

    :param value: any nesting of mappings, lists and scalars; keys stay as they are.
    """
    if isinstance(value, str):
        return value.replace("{job_id}", job_id)
    if isinstance(value, Mapping):
        return {key: fill_in(item, job_id) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_in(item, job_id) for item in value]
    return value
