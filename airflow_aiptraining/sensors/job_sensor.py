"""What the sensors have in common: which job they look at, and waiting as Airflow's modes do."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
)

from airflow_aiptraining.triggers import deferral
from airflow_aiptraining.triggers.training_job import AIPTrainingJobTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_aiptraining.hooks.training import AIPTrainingHook
    from airflow_aiptraining.sensors.finding import Attempt
    from airflow_aiptraining.services.ml_v1 import MLv1Service

#: Airflow's own limit on triggers only comes so many seconds after the sensor's.
BACKSTOP = 3_600.0
_AWAY_KEY = "aiptraining_away_since"


class StillWaitingError(Exception):
    """What a sensor waits for isn't there yet; the text says what it found."""


class JobSensor(BaseSensorOperator):
    """Looks at a job until it is what the subclass wants; never cancels it.

    A subclass has :meth:`look`.  A service that doesn't answer is looked at again later, until the
    sensor's ``timeout``; that counts from the first look of this try, over all legs of a deferral.
    """

    template_fields: Sequence[str] = (
        "job_id",
        "job_id_base",
        "logical_date",
        "project_id",
        "gcp_conn_id",
        "impersonation_chain",
    )

    def __init__(
        self,
        *,
        job_id: Any = None,
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
            raise ValueError(
                f"{self.task_id}: give either job_id, e.g. job_id=train.output, or job_id_base."
            )
        self.job_id = job_id
        self.job_id_base = job_id_base
        self.logical_date = logical_date
        self.map_index = map_index
        self.project_id = project_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        self.deferrable = deferral.is_deferrable(deferrable)
        #: What the last look found, for the message of a time-out.
        self._found = ""
        self._active: tuple[str, MLv1Service] | None = None
        self._api_endpoint: str | None = None
        self._away_since: datetime | None = None

    @cached_property
    def hook(self) -> AIPTrainingHook:
        """The hook, also in a process that only resumes the task."""
        from airflow_aiptraining.hooks.training import AIPTrainingHook

        return AIPTrainingHook(self.gcp_conn_id, self.impersonation_chain)

    # Looking ----------------------------------------------------------------------------------

    def look(self, context: Context) -> Any:
        """Look once, and return the task's value.

        :raises StillWaitingError: not yet.
        :raises AirflowFailException: never.
        :raises TransientServiceError: a service doesn't answer.
        """
        raise NotImplementedError

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once, whatever the mode."""
        from airflow_aiptraining.core.gates import utc
        from airflow_aiptraining.exceptions import TransientServiceError

        self._active = None
        try:
            value = self.look(context)
        except StillWaitingError as found:
            self._found = str(found)
            self.log.info("Not yet: %s", found)
            self._is_back(context)
            return PokeReturnValue(is_done=False)
        except TransientServiceError as error:
            since = utc(self._away(context))
            self._found = f"No answer since {since}: {error}"
            self.log.warning("No answer since %s, looking again later: %s", since, error)
            return PokeReturnValue(is_done=False)
        except AirflowFailException as error:
            if self.soft_fail or self.never_fail:
                # Airflow's own words for this skip don't say why.
                raise AirflowSkipException(str(error)) from error
            raise
        self._is_back(context)
        return PokeReturnValue(is_done=True, xcom_value=value)

    def _service(self, project_id: str | None = None) -> MLv1Service:
        """Return the service: where the job was found before, else where the connection leads."""
        return self.hook.get_service(self.project_id or project_id, api_endpoint=self._api_endpoint)

    def _newest_attempt(self, service: MLv1Service, context: Context) -> Attempt:
        """Return the newest attempt for the base and the date.

        :raises StillWaitingError: there is none yet; or the newest has ended without success while
            its task goes on, so that another one may follow.
        :raises InvalidJobIdError: the base or the date can't be read.
        """
        from airflow_aiptraining.sensors.finding import newest_attempt, work_of_date

        work = work_of_date(
            context, str(self.job_id_base), self.logical_date, map_index=self.map_index
        )
        attempt = newest_attempt(service, work)
        if attempt is None:
            raise StillWaitingError(
                f"There is no job {work.attempt(1)!r} in project {service.project_id!r}."
            )
        if attempt.has_failed and (task := attempt.task_that_goes_on(self.hook)):
            raise StillWaitingError(
                f"Job {attempt.job_id!r} (attempt {attempt.number}) ended {attempt.state}; another "
                f"attempt may follow: its task goes on, {task}."
            )
        return attempt

    def _note_active(self, job: Mapping[str, Any], service: MLv1Service) -> None:
        """Remember a job whose end is what to wait for next."""
        self._active = (str(job["jobId"]), service)

    # Waiting in the triggerer -----------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        """Wait; if deferrable, in the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        return self._look_or_defer(context, time.time() + self.timeout)

    def execute_complete(
        self,
        context: Context,
        event: Any,
        job_id: str | None = None,
        deadline: float | None = None,
    ) -> Any:
        """Look again when the job that this task deferred for has ended.

        The event is no more than an occasion: SQLite uses the ids of deleted triggers again, so it
        may be another task's.

        :param job_id: of that job; ``None`` for a task that an earlier version deferred.
        :param deadline: epoch seconds; the same.
        """
        from airflow_aiptraining.exceptions import ServiceError

        told = event if isinstance(event, Mapping) and "job_id" in event else {}
        if job_id is None or told.get("job_id") == job_id:
            self._api_endpoint = told.get("api_endpoint")
        else:
            self.log.warning("This task waits for job %s; the event is of %s.", job_id, event)
            told = {}
        if deadline is None:
            deadline = time.time() + (0.0 if told.get("event") == "timeout" else self.timeout)
        error = None
        if told.get("event") == "error":
            error = ServiceError(
                f"Job {told['job_id']!r} can't be read any more: {told.get('message')} It may go "
                "on; a retry of this task looks for it again."
            )
        return self._look_or_defer(context, deadline, error)

    def look_again(self, context: Context, event: Any, deadline: float) -> Any:
        """Look again after ``poke_interval``.

        :param deadline: epoch seconds.
        """
        return self._look_or_defer(context, deadline)

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        """Go on after a deferral; a skip tells its own reason in place of Airflow's."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowSkipException as skip:
            if skip.__cause__ is None:
                raise
            raise AirflowSkipException(str(skip.__cause__)) from skip.__cause__

    def _look_or_defer(
        self, context: Context, deadline: float, error: Exception | None = None
    ) -> Any:
        """Look once; return the value, or defer for the next look.

        ``soft_fail``, ``never_fail`` and ``silent_fail`` mean what they mean to a sensor that
        pokes.

        :param error: met in the place of the look.
        """
        looked = PokeReturnValue(is_done=False)
        try:
            if error is not None:
                raise error
            looked = self.poke(context)
        except AirflowSkipException:
            raise
        except (Exception, AirflowTaskTimeout) as met:
            ends = (AirflowFailException, AirflowSensorTimeout, AirflowTaskTimeout)
            if self.silent_fail and not isinstance(met, ends):
                self._found = str(met)
                self.log.error("Looking again later:\n%s", traceback.format_exc())
            elif self.never_fail or (self.soft_fail and isinstance(met, ends)):
                raise AirflowSkipException(str(met)) from met
            else:
                raise
        if looked:
            return looked.xcom_value
        left = deadline - time.time()
        if left <= 0:
            self._time_out()
        self._defer(deadline, max(left, deferral.SHORTEST_DEFERRAL))

    def _time_out(self) -> None:
        message = (
            f"Not passed within {self.timeout:.0f} s: {self._found} Nothing was cancelled; raise "
            "the sensor's timeout if this may take longer."
        )
        if self.soft_fail:
            raise AirflowSkipException(message)
        raise AirflowSensorTimeout(message)

    def _defer(self, deadline: float, left: float) -> None:
        """Defer for the end of a job that is there, else for the next look."""
        backstop = timedelta(seconds=left + BACKSTOP)
        if self._active is None:
            from airflow.providers.standard.triggers.temporal import DateTimeTrigger

            pause = max(deferral.SHORTEST_DEFERRAL, min(self.poke_interval, left))
            self.defer(
                trigger=DateTimeTrigger(datetime.now(UTC) + timedelta(seconds=pause)),
                method_name="look_again",
                kwargs={"deadline": deadline},
                timeout=backstop,
            )
        job_id, service = self._active
        self.defer(
            trigger=AIPTrainingJobTrigger(
                job_id=job_id,
                project_id=service.project_id,
                service=self.hook.settings.service,
                api_endpoint=service.api_endpoint,
                gcp_conn_id=self.gcp_conn_id,
                impersonation_chain=self.impersonation_chain,
                poll_interval=float(self.poke_interval),
                deadline=time.time() + left,
                cancel_on_kill=False,
            ),
            method_name="execute_complete",
            kwargs={"job_id": job_id, "deadline": deadline},
            timeout=backstop,
        )

    # A service that is away -------------------------------------------------------------------

    def _away(self, context: Context) -> datetime:
        """Return since when there has been no answer, as far as this sensor knows."""
        from airflow_aiptraining.core.gates import parse_time, utc

        now = datetime.now(UTC)
        store = self._store(context)
        if store is None:
            self._away_since = self._away_since or now
            return self._away_since
        known = store.get(_AWAY_KEY) or {}
        since = now
        still = timedelta(seconds=3 * self.poke_interval + 120)  # a look itself may take a minute
        if known and now - parse_time(known["last"]) < still:
            since = parse_time(known["since"])
        store.set(_AWAY_KEY, {"since": utc(since), "last": utc(now)})
        return since

    def _is_back(self, context: Context) -> None:
        self._away_since = None
        store = self._store(context)
        if store is not None and store.get(_AWAY_KEY):
            store.set(_AWAY_KEY, {})

    def _store(self, context: Context) -> Any:
        """Return where a look finds what the last one knew; ``None`` if that was this process's."""
        if not self.reschedule and not self.deferrable:
            return None
        return context.get("task_state_store")
