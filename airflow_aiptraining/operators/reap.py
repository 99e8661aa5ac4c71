"""Cancels the training jobs that no task counts on any more."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_aiptraining.core.reaping import GRACE
from airflow_aiptraining.triggers.deferral import is_deferrable
from airflow_aiptraining.triggers.given_up import task_state

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_aiptraining.operators.reaper import Reaper


class AIPReapTrainingJobsOperator(BaseOperator):
    """Cancels this Airflow's active jobs whose task instance has ended or is gone.

    Airflow doesn't tell a job of every end of its task: marked failed before the trigger was picked
    up, a worker lost on the last try, a run deleted.  Such jobs would run, and be paid for, until
    their ``maxRunningTime``.  The operator looks twice, ``grace`` seconds apart, and cancels what
    was an orphan both times.  Without suspects it ends at once.  Jobs of other deployments, jobs
    submitted with ``wait_for_completion=False`` or ``cancel_on_kill=False``, and jobs whose task
    goes on (running, deferred, up for retry ...) are left alone.

    Only jobs of the connection's own project and endpoint are seen: run one such task for each.

    :param grace: seconds between the two looks.
    :param dry_run: look once, log what is found, cancel nothing.
    :param deferrable: wait in the triggerer; by default Airflow's
        ``[operators] default_deferrable``.
    :param project_id: by default the connection's.
    :param gcp_conn_id: an ``aiptraining`` or ``google_cloud_platform`` connection.
    :param impersonation_chain: service account, or chain of them, to impersonate.

    XCom: ``{"active", "suspected", "cancelled"}``: how many jobs are active, and job ids.
    """

    template_fields: Sequence[str] = ("project_id", "gcp_conn_id", "impersonation_chain")
    ui_color = "#fce8e6"

    def __init__(
        self,
        *,
        grace: float = GRACE,
        dry_run: bool = False,
        deferrable: bool | None = None,
        project_id: str | None = None,
        gcp_conn_id: str = "aiptraining_default",
        impersonation_chain: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(grace, bool) or not isinstance(grace, (int, float)) or not grace >= 0:
            raise ValueError(f"grace must be a number of seconds from 0, not {grace!r}.")
        self.grace = float(grace)
        # BaseOperator has a method of the name dry_run.
        self.is_dry_run = dry_run
        self.deferrable = is_deferrable(deferrable)
        self.project_id = project_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain

    def execute(self, context: Context) -> dict[str, Any]:
        """Look; if there are suspects, look again after ``grace`` seconds and cancel."""
        findings = self._reaper().look()
        suspects = [finding.job_id for finding in findings if finding.verdict.is_orphan]
        for finding in findings:
            if finding.verdict.is_orphan or finding.task is not None:
                self.log.info("%s", finding)
        result = {"active": len(findings), "suspected": suspects, "cancelled": []}
        if not suspects or self.is_dry_run:
            return result
        self.log.info("%d suspects: looking again in %.0f s.", len(suspects), self.grace)
        if self.deferrable:
            from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger

            self.defer(
                trigger=TimeDeltaTrigger(timedelta(seconds=self.grace)),
                method_name="look_again",
                kwargs={"result": result},
            )
        time.sleep(self.grace)
        return self.look_again(context, None, result)

    def look_again(self, context: Context, event: Any, result: Mapping[str, Any]) -> dict[str, Any]:
        """Cancel the suspects that are orphans still.

        :param result: of the first look.
        :raises ServiceError: some of them could not be cancelled; a retry begins anew.
        """
        from airflow_aiptraining.exceptions import ServiceError

        cancelled, problems = self._reaper().reap(result["suspected"])
        if problems:
            raise ServiceError(
                f"{len(problems)} jobs that nobody counts on were not cancelled and go on; the "
                "next run of this task tries again.\n" + "\n".join(problems)
            )
        return {**result, "cancelled": cancelled}

    def _reaper(self) -> Reaper:
        from airflow_aiptraining.hooks.training import AIPTrainingHook
        from airflow_aiptraining.operators.reaper import Reaper

        hook = AIPTrainingHook(self.gcp_conn_id, self.impersonation_chain)
        return Reaper(hook.get_service(self.project_id), hook.deployment, task_state)
