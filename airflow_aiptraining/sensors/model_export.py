"""The gate between training and whatever uses the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_aiptraining.core import job_ids
from airflow_aiptraining.core.attempts import OWNER
from airflow_aiptraining.core.conditions import parse_conditions
from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.exceptions import (
    GateNotPassedError,
    InvalidJobIdError,
    JobNotFoundError,
    StagingError,
)
from airflow_aiptraining.sensors.job_sensor import JobSensor, StillWaitingError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_aiptraining.hooks.model_gate import GatedJob, ModelGate
    from airflow_aiptraining.services.ml_v1 import MLv1Service


class AIPModelExportSensor(JobSensor):
    """Passes once a job has SUCCEEDED, its model is whole and new, and its metrics are good enough.

    A model is taken only if every part of it was written after the job was created, so an attempt
    that wrote nothing doesn't pass on its predecessor's files.  Its value, for
    :class:`~airflow_aiptraining.operators.export.AIPModelExportOperator`: ``job_id``,
    ``project_id``, ``model_uri``, ``objects`` (name, generation, size, crc32c), ``metrics`` (finite
    numbers under dotted names), ``conditions``, ``logical_date`` (``None`` for a job that no DAG
    run submitted), ``attempt``, ``spec``, ``create_time``, ``end_time``, ``trial_id``.

    With ``deferrable=True`` the triggerer waits for the job's end, and then from look to look for
    its model; modes ``poke`` and ``reschedule`` are those of every sensor.  The job is never
    cancelled.

    :param job_id: the job; or the whole result of
        :class:`~airflow_aiptraining.operators.training_job.AIPTrainingJobOperator`
        (``job_id=train.output``).
    :param job_id_base: instead of ``job_id``: the base that the training task has; the newest
        attempt for ``logical_date`` is taken, and waited for if there is none yet, or if that one
        failed and its task may make another (see
        :class:`~airflow_aiptraining.sensors.training_job.AIPTrainingJobSensor`).
    :param logical_date: of the training run, where it isn't this DAG run; ISO 8601 or a datetime.
    :param map_index: of a mapped training task; -1 for one that isn't mapped.
    :param job_dir: where the job writes, if its own ``jobDir`` doesn't say.
    :param model_uri: where the model lies, for trainers that write elsewhere than ``job_dir``;
        ``{job_id}`` in both is the job's id.  Default: ``job_dir``; for a tuning job the best
        trial's folder in it.
    :param model_files: names or patterns (``*``, ``**``, a final ``/``) that make the model, for
        shapes other than SavedModel, ``model.joblib``, ``model.pkl`` and ``model.bst``.
    :param metrics: JSON file of the metrics: a name, looked for beside the model, then in
        ``model_uri``, then in ``job_dir``; or a ``gs://`` URI; or ``None``.  A tuning job's final
        metric is known under its tag without a file.
    :param conditions: ``"accuracy >= 0.9"``, a list of such, or ``{"accuracy": ">= 0.9"}``; all
        must hold.
    :param on_failed_condition: ``fail`` (no retry) or ``skip``.
    :param settle_time: seconds without another write before a model that was written to after the
        job's end is taken; one that is older is taken at once.
    :param grace_period: seconds after the job's end for which a model that isn't whole is waited
        for; then the task fails.  ``None``: until the sensor's ``timeout``.
    :param project_id: of the job; the connection's where not given.
    :param gcp_conn_id: see :class:`~airflow_aiptraining.hooks.training.AIPTrainingHook`.
    :param impersonation_chain: the same.
    :param deferrable: wait in the triggerer, without a worker, whatever ``mode`` says; by default
        Airflow's ``[operators] default_deferrable``.

    While the sensor is deferred, its ``timeout`` counts from the start of this try;
    ``exponential_backoff`` has no effect there.
    """

    template_fields: Sequence[str] = (
        *JobSensor.template_fields,
        "job_dir",
        "model_uri",
        "model_files",
        "metrics",
        "conditions",
        "on_failed_condition",
    )

    def __init__(
        self,
        *,
        job_dir: str | None = None,
        model_uri: str | None = None,
        model_files: str | Sequence[str] | None = None,
        metrics: str | None = "metrics.json",
        conditions: str | Sequence[Any] | Mapping[str, Any] | None = None,
        on_failed_condition: str = "fail",
        settle_time: float = 30.0,
        grace_period: float | None = 900.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job_dir = job_dir
        self.model_uri = model_uri
        self.model_files = model_files
        self.metrics = metrics
        self.conditions = conditions
        self.on_failed_condition = on_failed_condition
        self.settle_time = settle_time
        self.grace_period = grace_period
        if isinstance(conditions, (str, list, tuple, dict)) and "{{" not in str(conditions):
            parse_conditions(conditions)  # one that can't be read is the DAG's import error

    def look(self, context: Context) -> dict[str, Any]:
        """Return the verdict on a model that passes.

        :raises AirflowFailException: waiting and retrying won't help; the text says why.
        :raises AirflowSkipException: a condition failed and ``on_failed_condition`` is ``skip``.
        """
        from airflow_aiptraining.hooks.model_gate import ConditionFailedError, NotYetError

        try:
            gate = self._gate()
            named = self.job_id if isinstance(self.job_id, Mapping) else {}
            service = self._service(named.get("project_id"))
            work = self._find_job(service, context)
            if not JobState.of(work.job).is_terminal:
                self._note_active(work.job, service)
            verdict = gate.judge(work, self.hook.get_storage_client(), datetime.now(UTC))
        except NotYetError as reason:
            raise StillWaitingError(str(reason)) from reason
        except ConditionFailedError as error:
            if self.on_failed_condition == "skip":
                raise AirflowSkipException(str(error)) from error
            raise AirflowFailException(str(error)) from error
        except (GateNotPassedError, StagingError, InvalidJobIdError) as error:
            raise AirflowFailException(str(error)) from error
        self.log.info("Job %s passes with %s", work.job_id, verdict["model_uri"])
        return verdict

    def _gate(self) -> ModelGate:
        from airflow_aiptraining.hooks.model_gate import ModelGate

        if self.on_failed_condition not in ("fail", "skip"):
            raise GateNotPassedError(
                f"on_failed_condition is {self.on_failed_condition!r}; it may be 'fail' or 'skip'."
            )
        try:
            conditions = parse_conditions(self.conditions)
        except (TypeError, ValueError) as error:
            raise GateNotPassedError(f"conditions: {error}") from error
        files = self.model_files or ()
        return ModelGate(
            job_dir=self.job_dir,
            model_uri=self.model_uri,
            model_files=[files] if isinstance(files, str) else files,
            metrics=self.metrics,
            conditions=conditions,
            settle_time=self.settle_time,
            grace_period=self.grace_period,
        )

    def _find_job(self, service: MLv1Service, context: Context) -> GatedJob:
        from airflow_aiptraining.hooks.model_gate import GatedJob

        if self.job_id is None:
            newest = self._newest_attempt(service, context)
            if newest.has_failed:
                reason = newest.job.get("errorMessage") or "the service gave no reason"
                raise GateNotPassedError(
                    f"Job {newest.job_id!r} ended {newest.state}, so it has no model to pass on: "
                    f"{reason} {newest.cure(self.hook)}"
                )
            return GatedJob(newest.job, service.project_id, newest.work.stamp, newest.number)
        named = self.job_id.get("job_id") if isinstance(self.job_id, Mapping) else self.job_id
        if not isinstance(named, str) or named in ("", "None"):
            raise GateNotPassedError(
                f"job_id is {self.job_id!r}: the training task gave none. Was it skipped?"
            )
        try:
            job = service.get_job(named)
        except JobNotFoundError as error:
            raise GateNotPassedError(
                f"{error} Check job_id, or give job_id_base to wait for a job that isn't there yet."
            ) from error
        found = job_ids.split(named)
        # A date in the id of a job trained by hand is whatever its author meant by it.
        if found is None or OWNER not in job.get("labels", {}):
            return GatedJob(job, service.project_id)
        return GatedJob(job, service.project_id, found[0].stamp, found[1])
