"""Cancels a training job on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class AIPCancelTrainingJobOperator(BaseOperator):
    """Cancels a training job, whoever submitted it, and waits until it has ended.

    A job that has ended already is left as it is.

    :param job_id: the job's full id, e.g. ``{{ ti.xcom_pull('train', key='job_id') }}``.
    :param wait_seconds: how long to wait for its end; 0 not to wait.
    :param project_id: by default the connection's.
    :param gcp_conn_id: an ``aiptraining`` or ``google_cloud_platform`` connection.
    :param impersonation_chain: service account, or chain of them, to impersonate.

    XCom: ``{"job_id", "state"}``.
    """

    template_fields: Sequence[str] = ("job_id", "project_id", "gcp_conn_id", "impersonation_chain")
    ui_color = "#fce8e6"

    def __init__(
        self,
        *,
        job_id: str,
        wait_seconds: float = 300.0,
        project_id: str | None = None,
        gcp_conn_id: str = "aiptraining_default",
        impersonation_chain: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job_id = job_id
        self.wait_seconds = wait_seconds
        self.project_id = project_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the job's id and state."""
        from airflow_aiptraining.core.states import JobState
        from airflow_aiptraining.exceptions import TransientServiceError
        from airflow_aiptraining.hooks.training import AIPTrainingHook
        from airflow_aiptraining.operators.waiting import cancel_and_wait
        from airflow_aiptraining.services.retries import PATIENCE

        hook = AIPTrainingHook(self.gcp_conn_id, self.impersonation_chain)
        service = hook.get_service(self.project_id)
        job = cancel_and_wait(service, self.job_id, seconds=self.wait_seconds, patience=PATIENCE)
        self.log.info("Job %s is %s.", self.job_id, job.get("state"))
        if self.wait_seconds and not JobState.of(job).is_terminal:
            raise TransientServiceError(
                f"Job {self.job_id!r} is still {job.get('state')} {self.wait_seconds:.0f} s after "
                "it was cancelled. Retry the task to go on waiting."
            )
        return {"job_id": self.job_id, "state": job.get("state")}
