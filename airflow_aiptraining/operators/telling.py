"""What people are told of a job before it is submitted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from airflow_aiptraining.operators.job_request import JobRequest


class Told(NamedTuple):
    """A job's body and origins, masked as Airflow masks.

    :param text: for the task log.
    :param xcom: ``{"body": ..., "origins": {path: source}}``.
    """

    text: str
    xcom: dict[str, Any]


def body_and_origins(request: JobRequest, job_id: str) -> Told:
    """Return a job's body and where each value came from.

    Airflow masks its logs but not its XComs, so the masking is done here for both.
    """
    from airflow.providers.common.compat.sdk import redact

    origins = dict(request.merged.origins)
    body: Any = redact(request.body(job_id))
    lines = [f"  {path}: {origin}" for path, origin in sorted(origins.items())]
    text = json.dumps(body, indent=2, sort_keys=True) + "\n" + "\n".join(lines)
    return Told(text, {"body": body, "origins": origins})
