"""Waits for a training job that another task, another DAG or a person submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_aiptraining.triggers.deferral import is_deferrable
from airflow_aiptraining.triggers.training_job import AIPTrainingJobTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_aiptraining.hooks.training import AIPTrainingHook
    from airflow_aiptraining.services.ml_v1 import MLv1Service


class AIPTrainingJobSensor(BaseSensorOperator):
    """Passes when a training job has SUCCEEDED; fails when it ended otherwise.

    The job is named by its full id, or by ``job_id_base`` and date: then the newest attempt counts,
    and a job that isn't there yet is waited for.  It never cancels the job.

    :param job_id: full id of the job.
    :param job_id_base: base of the job ids, as given to the operator's ``job_id`` (or what
        :func:`airflow_aiptraining.core.job_ids.default_base` makes of its dag id and task id).
    :param logical_date: date of the run that submits it, ISO 8601; by default this run's own.
    :param map_index: of a mapped task's instance.
    :param project_id: by default the connection's.
    :param gcp_conn_id: an ``aiptraining`` or ``google_cloud_platform`` connection.
    :param impersonation_chain: service account, or chain of them, to impersonate.
    :param deferrable: wait in the triggerer, without a worker; by default Airflow's
        ``[operators] default_deferrable``.

    ``poke_interval``, ``timeout``, ``mode`` and ``soft_fail`` are those of every sensor.

    XCom: the job's result, as the operator's.
    """

    template_fields: Sequence[str] = (
        "job_id",
        "job_id_base",
        "logical_date",
        "project_id",
        "gcp_conn_id",
        "impersonation_chain",
    )
    ui_color = "#e6f4ea"

    def __init__(
        self,
        *,
        job_id: str | None = None,
        job_id_base: str | None = None,
        logical_date: str | datetime | None = None,
        map_index: int = -1,
        project_id: str | None = None,
        gcp_conn_id: str = "aiptraining_default",
        impersonation_chain: str | Sequence[str] | None = None,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (job_id is None) == (job_id_base is None):
            raise ValueError("Give either job_id (a job's full id) or job_id_base (with a date).")
        self.job_id = job_id
        self.job_id_base = job_id_base
        self.logical_date = logical_date
        self.map_index = map_index
        self.project_id = project_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        self.deferrable = is_deferrable(deferrable)

    @cached_property
    def hook(self) -> AIPTrainingHook:
        """The hook, also in a process that only resumes the task."""
        from airflow_aiptraining.hooks.training import AIPTrainingHook

        return AIPTrainingHook(self.gcp_conn_id, self.impersonation_chain)

    def execute(self, context: Context) -> Any:
        """Wait for the job; in the triggerer as soon as it is there, if deferrable."""
        if not self.deferrable:
            return super().execute(context)
        from airflow_aiptraining.exceptions import TransientServiceError

        service = self.hook.get_service(self.project_id)
        try:
            job = self._find(context, service)
        except TransientServiceError as error:
            job = None
            self.log.warning("%s", error)
        if job is None and self.job_id is None:
            # Which attempt it will be isn't known before it is there.
            return super().execute(context)
        if job is not None and (value := self._judge(job, service)).is_done:
            return value.xcom_value
        self.defer(
            trigger=AIPTrainingJobTrigger(
                job_id=self.job_id or str(job and job["jobId"]),
                project_id=service.project_id,
                service=self.hook.settings.service,
                api_endpoint=service.api_endpoint,
                gcp_conn_id=self.gcp_conn_id,
                impersonation_chain=self.impersonation_chain,
                poll_interval=float(self.poke_interval),
                deadline=datetime.now().timestamp() + float(self.timeout),  # noqa: DTZ005
                cancel_on_kill=False,
            ),
            method_name="execute_complete",
            kwargs={"job_id": self.job_id or str(job and job["jobId"])},
            timeout=timedelta(seconds=float(self.timeout) + 3_600),
        )

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], job_id: str | None = None
    ) -> Any:
        """Judge the job that the trigger waited for.

        :param job_id: of the job that this task deferred for.
        """
        from airflow.sdk.exceptions import AirflowSensorTimeout

        from airflow_aiptraining.exceptions import ServiceError

        if job_id is not None and event["job_id"] != job_id:
            # Another trigger's event: SQLite uses the ids of deleted triggers again.
            return self.execute(context)
        job_id = event["job_id"]
        if event["event"] == "timeout":
            if self.soft_fail:
                raise AirflowSkipException(f"Job {job_id!r} hasn't ended in time.")
            raise AirflowSensorTimeout(
                f"Job {job_id!r} hasn't ended within {self.timeout:.0f} s; it goes on."
            )
        if event["event"] == "error":
            raise ServiceError(f"Job {job_id!r} can't be read: {event['message']}")
        service = self.hook.get_service(event["project_id"], api_endpoint=event["api_endpoint"])
        return self._judge(service.get_job(job_id), service).xcom_value

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once.  A service that doesn't answer is asked again at the next poke."""
        from airflow_aiptraining.exceptions import TransientServiceError

        service = self.hook.get_service(self.project_id)
        try:
            job = self._find(context, service)
        except TransientServiceError as error:
            self.log.warning("%s. Looking again at the next poke.", error)
            return PokeReturnValue(is_done=False)
        if job is None:
            self.log.info("There is no such job yet (%s).", self.job_id or self.job_id_base)
            return PokeReturnValue(is_done=False)
        return self._judge(job, service)

    def _find(self, context: Context, service: MLv1Service) -> dict[str, Any] | None:
        from airflow_aiptraining.exceptions import JobNotFoundError
        from airflow_aiptraining.sensors.finding import newest_attempt, work_of_date

        if self.job_id_base is not None:
            work = work_of_date(
                context, self.job_id_base, self.logical_date, map_index=self.map_index
            )
            found = newest_attempt(service, work)
            return None if found is None else dict(found[0])
        try:
            return service.get_job(str(self.job_id))
        except JobNotFoundError:
            return None

    def _judge(self, job: dict[str, Any], service: MLv1Service) -> PokeReturnValue:
        from airflow_aiptraining.core.states import JobState
        from airflow_aiptraining.operators.job_result import failure, job_result

        state = JobState.of(job)
        self.log.info("Job %s is %s.", job["jobId"], job.get("state"))
        if not state.is_terminal:
            return PokeReturnValue(is_done=False)
        if state.is_successful:
            return PokeReturnValue(is_done=True, xcom_value=job_result(job, service.project_id))
        from airflow_aiptraining.links import job_url

        name = self.hook.settings.service
        url = job_url(name, service.api_endpoint, service.project_id, job["jobId"])
        error = failure(job, service, name, url)
        if self.soft_fail:
            raise AirflowSkipException(str(error)) from error
        raise AirflowFailException(str(error)) from error
