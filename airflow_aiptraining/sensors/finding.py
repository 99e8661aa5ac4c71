"""Finding the newest attempt at a piece of work, from its base and date."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_aiptraining.core.job_ids import WorkId, check_base
from airflow_aiptraining.exceptions import InvalidJobIdError, JobNotFoundError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_aiptraining.services.ml_v1 import MLv1Service


def work_of_date(
    context: Context, base: str, logical_date: str | datetime | None, *, map_index: int = -1
) -> WorkId:
    """Return the work that a base and a date name.

    :param logical_date: of the run that trains, ISO 8601 or a datetime; ``None`` or empty for that
        of this very run.
    :raises InvalidJobIdError: the base or the date can't be read.
    """
    if not logical_date:
        from airflow_aiptraining.operators.task_identity import work_of

        return work_of(context, base, map_index=map_index)
    if isinstance(logical_date, str):
        try:
            logical_date = datetime.fromisoformat(logical_date)
        except ValueError:
            raise InvalidJobIdError(
                f"logical_date is {logical_date!r}; write it as 2026-11-14T00:00:00+00:00."
            ) from None
    if logical_date.tzinfo is None:
        logical_date = logical_date.replace(tzinfo=UTC)
    return WorkId(check_base(base), logical_date, "", map_index)


def newest_attempt(service: MLv1Service, work: WorkId) -> tuple[Mapping[str, Any], int] | None:
    """Return the newest attempt's job and its number, or ``None`` where there is none yet."""
    number, newest = 1, None
    while True:
        try:
            newest = service.get_job(work.attempt(number))
        except JobNotFoundError:
            return (newest, number - 1) if newest is not None else None
        number += 1
