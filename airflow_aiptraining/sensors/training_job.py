"""Waits for a training job that another task, another DAG or a person submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_aiptraining.sensors.job_sensor import JobSensor, StillWaitingError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_aiptraining.services.ml_v1 import MLv1Service


class AIPTrainingJobSensor(JobSensor):
    """Passes when a training job has SUCCEEDED; fails, without retry, when it ended otherwise.

    The job is named by its full id, or by ``job_id_base`` and date; one that isn't there yet is
    waited for.  By base and date the newest attempt counts.  When that ended FAILED or CANCELLED
    and this Airflow submitted it, the sensor goes on waiting as long as the task that submitted it
    goes on (up for retry, cleared, running): another attempt may follow.  Once that task has ended,
    or where another Airflow or a person submitted the job, the newest attempt is the last word.

    The sensor never cancels the job, whatever becomes of the sensor itself.

    :param job_id: full id of the job.
    :param job_id_base: base of the job ids, as given to the operator's ``job_id`` (or what
        :func:`airflow_aiptraining.core.job_ids.default_base` makes of its dag id and task id).
    :param logical_date: date of the run that submits it, ISO 8601 or a datetime; by default this
        run's own.
    :param map_index: of a mapped task's instance; -1 for a task that isn't mapped.
    :param project_id: by default the connection's.
    :param gcp_conn_id: an ``aiptraining`` or ``google_cloud_platform`` connection.
    :param impersonation_chain: service account, or chain of them, to impersonate.
    :param deferrable: wait in the triggerer, without a worker, whatever ``mode`` says; by default
        Airflow's ``[operators] default_deferrable``.

    ``poke_interval``, ``timeout``, ``mode``, ``soft_fail``, ``never_fail`` and ``silent_fail`` are
    those of every sensor.  While it is deferred, ``timeout`` counts from the start of this try;
    ``exponential_backoff`` has no effect there.

    XCom: the job's result, as the operator's.
    """

    ui_color = "#e6f4ea"

    def look(self, context: Context) -> dict[str, Any]:
        """Return the job's result if it has SUCCEEDED."""
        from airflow_aiptraining.exceptions import InvalidJobIdError, JobNotFoundError

        service = self._service()
        if self.job_id is None:
            try:
                attempt = self._newest_attempt(service, context)
            except InvalidJobIdError as error:
                raise AirflowFailException(str(error)) from error
            return self._judge(attempt.job, service, attempt.cure(self.hook))
        try:
            job = service.get_job(str(self.job_id))
        except JobNotFoundError as error:
            raise StillWaitingError(
                f"There is no job {self.job_id!r} in project {service.project_id!r}."
            ) from error
        return self._judge(
            job, service, "This task only waits: clear the task that trains, then this one."
        )

    def _judge(self, job: Mapping[str, Any], service: MLv1Service, cure: str) -> dict[str, Any]:
        from airflow_aiptraining.core.states import JobState
        from airflow_aiptraining.links import job_url
        from airflow_aiptraining.operators.job_result import failure, job_result

        state = JobState.of(job)
        if not state.is_terminal:
            self._note_active(job, service)
            raise StillWaitingError(f"Job {job['jobId']!r} is {job.get('state')}.")
        self.log.info("Job %s is %s.", job["jobId"], state)
        if state.is_successful:
            return job_result(job, service.project_id)
        name = self.hook.settings.service
        url = job_url(name, service.api_endpoint, service.project_id, str(job["jobId"]))
        error = failure(job, service, name, url, cure=cure)
        raise AirflowFailException(str(error)) from error
