"""Submits a training job and waits for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout, TaskDeferralTimeout

from airflow_aiptraining.core.job_ids import in_words
from airflow_aiptraining.core.overridable import DEFAULT_OVERRIDABLE
from airflow_aiptraining.links import AIPTrainingJobLink, job_url
from airflow_aiptraining.operators.job_arguments import FIELD_OF, unread_names
from airflow_aiptraining.operators.kill_signal import KillSignal
from airflow_aiptraining.operators.task_identity import task_of
from airflow_aiptraining.triggers.deferral import is_deferrable
from airflow_aiptraining.triggers.training_job import AIPTrainingJobTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_aiptraining.core.attempts import Ledger
    from airflow_aiptraining.hooks.training import AIPTrainingHook
    from airflow_aiptraining.operators.awaited_job import AwaitedJob
    from airflow_aiptraining.operators.job_request import JobRequest
    from airflow_aiptraining.operators.submission import Prepared, Submitted
    from airflow_aiptraining.operators.trainer import Trainer
    from airflow_aiptraining.services.ml_v1 import MLv1Service

#: A cleared task's old attempt gets so many seconds to end before a retry is asked for.
OLD_ATTEMPT_LIMIT = 1_800.0
#: Airflow's own trigger timeout orphans jobs, so it comes only so long after the deadline.
BACKSTOP = timedelta(hours=1)


class AIPTrainingJobOperator(BaseOperator):
    """Packages a trainer, submits its training job once, and waits for the job.

    The job is merged from the config file, the arguments here (named as gcloud's flags), and the
    run's params.  Retries attach to a job that is still running, take the result of one that
    succeeded, and make a new attempt after one that failed; clearing the task trains again.

    :param job_id: base of the job ids (letters, digits, underscores); the run's date and the
        attempt are added.  By default made from dag id and task id.
    :param config: YAML or JSON file in the form of the API's Job; a path relative to the DAG file,
        or ``gs://``.  Its values may hold templates and ``{job_id}``.
    :param package_path: the trainer's package folder, relative to the DAG file; built and uploaded
        once for each state of its sources.
    :param packages: ready archives, local or ``gs://``.
    :param module_name: the trainer's main module, e.g. ``trainer.task``.
    :param job_dir: ``gs://`` folder for the job's output, passed to the trainer as ``--job-dir``;
        may hold ``{job_id}``, the attempt's own id.
    :param staging_bucket: for packages; by default the connection's, else job_dir's.
    :param args: arguments for the trainer; replace the config file's.
    :param extra_args: appended to them.
    :param training_input: fields of the API's ``TrainingInput`` that have no argument here.
    :param labels: of the job; names that begin with ``airflow-`` are the operator's.
    :param overridable: paths of ``trainingInput`` that the run's params may set; see
        :mod:`airflow_aiptraining.core.overridable`.
    :param project_id: by default the connection's.
    :param gcp_conn_id: an ``aiptraining`` or ``google_cloud_platform`` connection.
    :param impersonation_chain: service account, or chain of them, to impersonate.
    :param poll_interval: seconds between two looks at the job.
    :param timeout: seconds from the job's creation until it is cancelled and the task fails;
        by default the task's ``execution_timeout``.
    :param deferrable: wait in the triggerer, without a worker; by default Airflow's
        ``[operators] default_deferrable``.
    :param wait_for_completion: ``False`` ends the task when the job is submitted.
    :param cancel_on_kill: cancel the job when a person gives up the task (marks it, clears it, or
        its run fails).
    :param dry_run: check everything and log the job; build, upload and submit nothing.

    The other arguments set the field of the same name: ``region``, ``scale_tier``,
    ``runtime_version``, ``python_version``, ``service_account``, ``enable_web_access``,
    ``network``, ``kms_key``, ``use_chief_in_tf_config``, ``tpu_tf_version`` and, for ``master``,
    ``worker`` and ``parameter_server``: ``…_machine_type``, ``…_count`` (not for master),
    ``…_image_uri``, ``…_accelerator`` (``{"type", "count"}``).

    XCom: the result of :func:`airflow_aiptraining.operators.job_result.job_result`; ``job_id``
    from the moment of submission; ``training_job``, the submitted body with where each value came
    from.
    """

    template_fields: Sequence[str] = (
        "job_id",
        "config",
        "package_path",
        "packages",
        *FIELD_OF,
        "staging_bucket",
        "extra_args",
        "training_input",
        "project_id",
        "gcp_conn_id",
        "impersonation_chain",
    )
    operator_extra_links = (AIPTrainingJobLink(),)
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        job_id: str | None = None,
        config: str | None = None,
        package_path: str | None = None,
        packages: Sequence[str] | None = None,
        module_name: str | None = None,
        job_dir: str | None = None,
        staging_bucket: str | None = None,
        region: str | None = None,
        scale_tier: str | None = None,
        runtime_version: str | None = None,
        python_version: str | None = None,
        service_account: str | None = None,
        enable_web_access: bool | None = None,
        labels: dict[str, str] | None = None,
        kms_key: str | None = None,
        network: str | None = None,
        master_machine_type: str | None = None,
        master_image_uri: str | None = None,
        master_accelerator: dict[str, Any] | None = None,
        worker_machine_type: str | None = None,
        worker_count: int | str | None = None,
        worker_image_uri: str | None = None,
        worker_accelerator: dict[str, Any] | None = None,
        parameter_server_machine_type: str | None = None,
        parameter_server_count: int | str | None = None,
        parameter_server_image_uri: str | None = None,
        parameter_server_accelerator: dict[str, Any] | None = None,
        use_chief_in_tf_config: bool | None = None,
        tpu_tf_version: str | None = None,
        args: Sequence[str] | None = None,
        extra_args: Sequence[str] | None = None,
        training_input: dict[str, Any] | None = None,
        overridable: Sequence[str] = DEFAULT_OVERRIDABLE,
        project_id: str | None = None,
        gcp_conn_id: str = "aiptraining_default",
        impersonation_chain: str | Sequence[str] | None = None,
        poll_interval: float = 30.0,
        timeout: float | timedelta | None = None,
        deferrable: bool | None = None,
        wait_for_completion: bool = True,
        cancel_on_kill: bool = True,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job_id = job_id
        self.config = config
        self.package_path = package_path
        self.packages = packages
        self.module_name = module_name
        self.job_dir = job_dir
        self.staging_bucket = staging_bucket
        self.region = region
        self.scale_tier = scale_tier
        self.runtime_version = runtime_version
        self.python_version = python_version
        self.service_account = service_account
        self.enable_web_access = enable_web_access
        self.labels = labels
        self.kms_key = kms_key
        self.network = network
        self.master_machine_type = master_machine_type
        self.master_image_uri = master_image_uri
        self.master_accelerator = master_accelerator
        self.worker_machine_type = worker_machine_type
        self.worker_count = worker_count
        self.worker_image_uri = worker_image_uri
        self.worker_accelerator = worker_accelerator
        self.parameter_server_machine_type = parameter_server_machine_type
        self.parameter_server_count = parameter_server_count
        self.parameter_server_image_uri = parameter_server_image_uri
        self.parameter_server_accelerator = parameter_server_accelerator
        self.use_chief_in_tf_config = use_chief_in_tf_config
        self.tpu_tf_version = tpu_tf_version
        self.args = args
        self.extra_args = extra_args
        self.training_input = training_input
        self.overridable = overridable
        self.project_id = project_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        self.poll_interval = _positive(poll_interval, "poll_interval")
        limit = timeout if timeout is not None else self.execution_timeout
        seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
        self.timeout = None if seconds is None else _positive(seconds, "timeout")
        self.deferrable = is_deferrable(deferrable)
        self.wait_for_completion = wait_for_completion
        self.cancel_on_kill = cancel_on_kill
        # BaseOperator has a method of the name dry_run.
        self.is_dry_run = dry_run
        self._kill = KillSignal()

    @cached_property
    def hook(self) -> AIPTrainingHook:
        """The hook, also in a process where ``execute`` never ran."""
        from airflow_aiptraining.hooks.training import AIPTrainingHook

        return AIPTrainingHook(self.gcp_conn_id, self.impersonation_chain)

    # Submitting -------------------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        """Submit the job, or find the one that an earlier try submitted, and wait for it."""
        return self._obtain_and_wait(context)

    def execute_after_end(self, context: Context, event: Any, job_id: str | None = None) -> Any:
        """Go on when an earlier attempt that was being cancelled has ended."""
        if not self._is_strange(event, job_id) and event["event"] == "timeout":
            raise _cancelling_too_long(event["job_id"])
        return self._obtain_and_wait(context)

    def _obtain_and_wait(self, context: Context) -> Any:
        if self.is_dry_run:
            return self._plan(context)
        submitted = self._obtain(context)
        awaited = self._awaited(context, submitted.job, submitted.service)
        if submitted.must_end_first:
            return self._wait_for_old_attempt(context, awaited)
        with awaited.cancelled_on_task_timeout():
            self._tell(context, awaited, submitted.attempt)
            return self._wait(awaited)

    def _plan(self, context: Context) -> dict[str, Any]:
        """Check the job and log it; nothing is built, uploaded or submitted."""
        from airflow_aiptraining.operators.task_identity import work_of

        with _no_retry_for_bad_input():
            job_id = work_of(context, self.job_id).attempt(1)
            request, trainer = self._request(context, job_id)
        planned = trainer.planned(request)
        self._tell_body(context, planned, job_id)
        return {
            "job_id": job_id,
            "project_id": self.project_id or self.hook.project_id,
            "state": None,
            "job_dir": planned.body(job_id)["trainingInput"].get("jobDir"),
            "dry_run": True,
        }

    def _obtain(self, context: Context) -> Submitted:
        """Return this task's job, submitted now or by an earlier try."""
        from airflow_aiptraining.operators.submission import Submission
        from airflow_aiptraining.operators.task_identity import stamp_of, work_of

        with _no_retry_for_bad_input():
            work = work_of(context, self.job_id)
            submission = Submission(
                service=self.hook.get_service(self.project_id),
                service_at=self._service_at,
                service_name=self.hook.settings.service,
                work=work,
                deployment=self.hook.deployment,
                task=task_of(context),
                prepare=lambda: self._prepare(context, work.attempt(1)),
                stamp=stamp_of(context),
                try_number=int(context["ti"].try_number),
                ti_id=str(context["ti"].id),
                store=_KeptForEver(context["task_state_store"]),
                cancel_on_kill=self.cancel_on_kill,
            )
            try:
                return submission.obtain()
            except AirflowTaskTimeout:
                submission.abandon()
                raise

    def _prepare(self, context: Context, job_id: str) -> Prepared:
        """Return what is to be submitted, all checked and packaged."""
        from airflow_aiptraining.core.attempts import job_labels
        from airflow_aiptraining.operators.awaited_job import is_given_up
        from airflow_aiptraining.operators.submission import Prepared
        from airflow_aiptraining.operators.task_identity import stamp_of

        request, trainer = self._request(context, job_id)
        trainer.check_buckets(request, job_id)
        request = trainer.staged(request)
        self._tell_body(context, request, job_id)
        task = task_of(context)
        if self._kill.was_received and is_given_up(task):
            raise AirflowFailException(f"No job was submitted for {task}: it was given up.")
        labels = job_labels(
            deployment=self.hook.deployment,
            task=task,
            spec=request.spec,
            stamp=stamp_of(context),
            keep=not (self.wait_for_completion and self.cancel_on_kill),
        )
        return Prepared(request.spec, lambda job_id: request.body(job_id, labels))

    def _request(self, context: Context, job_id: str) -> tuple[JobRequest, Trainer]:
        """Return the merged job and its trainer, checked as far as can be without a service."""
        from airflow_aiptraining.core.config import params_layer
        from airflow_aiptraining.exceptions import InvalidJobError
        from airflow_aiptraining.operators.job_request import merge_request, read_config
        from airflow_aiptraining.operators.trainer import Trainer
        from airflow_aiptraining.params import declared_paths

        dag = context["dag"]
        folder = Path(dag.folder)
        environment = dag.get_template_env(force_sandboxed=True)
        request = merge_request(
            config=read_config(self.config, folder, self.hook.get_storage_client)
            if self.config
            else None,
            render=lambda text: self.render_template(text, context, environment),
            arguments={name: getattr(self, name) for name in (*FIELD_OF, "training_input")},
            params=params_layer(
                context["params"], declared_paths(dag.params, self.params), self.overridable
            ),
            extra_args=self.extra_args or (),
            conn_id=self.gcp_conn_id,
            settings=self.hook.settings,
        )
        request = self._with_running_time(request)
        trainer = Trainer.of(
            package_path=self.package_path,
            packages=self.packages,
            folder=folder,
            staging_bucket=self.staging_bucket,
            hook=self.hook,
        )
        violations = trainer.violations(request) + trainer.planned(request).violations(job_id)
        if violations:
            raise InvalidJobError(violations)
        for note in request.merged.notes:
            self.log.info("%s", note)
        conf_keys = getattr(context["dag_run"], "conf", None) or {}
        for name in unread_names(conf_keys, {*dag.params, *self.params}):
            self.log.warning(
                "The run's conf has %r, which is no param of this DAG: it is not read. The DAG's "
                "author can declare it with training_params(), or you can use 'training_input' "
                "where the DAG has that.",
                name,
            )
        return request, trainer

    def _with_running_time(self, request: JobRequest) -> JobRequest:
        """Bound the bill with Airflow down: the whole timeout, where no maxRunningTime is set."""
        from airflow_aiptraining.operators.job_result import running_time_of

        scheduling = request.merged.job.get("trainingInput", {}).get("scheduling") or {}
        if self.timeout is None or not isinstance(scheduling, Mapping):
            return request
        if scheduling.get("maxRunningTime"):
            return request
        limit = {**scheduling, "maxRunningTime": running_time_of(self.timeout)}
        return request.with_values("argument timeout", {"scheduling": limit})

    def _service_at(self, ledger: Ledger) -> MLv1Service:
        return self.hook.get_service(ledger.project_id, api_endpoint=ledger.api_endpoint)

    def _tell_body(self, context: Context, request: JobRequest, job_id: str) -> None:
        from airflow_aiptraining.operators.telling import body_and_origins

        told = body_and_origins(request, job_id)
        self.log.info("The job, and where each value came from:\n%s", told.text)
        context["ti"].xcom_push(key="training_job", value=told.xcom)

    def _tell(self, context: Context, awaited: AwaitedJob, attempt: int) -> None:
        context["ti"].xcom_push(key="job_id", value=awaited.job_id)
        context["ti"].xcom_push(key=AIPTrainingJobLink().xcom_key, value=awaited.url)
        self.log.info("Job %s (attempt %d): %s", awaited.job_id, attempt, awaited.url)

    def _url(self, service: MLv1Service, job_id: str) -> str:
        name = self.hook.settings.service
        return job_url(name, service.api_endpoint, service.project_id, job_id)

    # Waiting ----------------------------------------------------------------------------------

    def _awaited(self, context: Context, job: dict[str, Any], service: MLv1Service) -> AwaitedJob:
        from airflow_aiptraining.operators.awaited_job import AwaitedJob

        return AwaitedJob(
            job=job,
            service=service,
            service_name=self.hook.settings.service,
            url=self._url(service, job["jobId"]),
            task=task_of(context),
            poll_interval=self.poll_interval,
            timeout=self.timeout,
            cancel_on_kill=self.cancel_on_kill,
            kill=self._kill,
        )

    def _wait(self, awaited: AwaitedJob) -> Any:
        from airflow_aiptraining.operators.job_result import job_result

        if awaited.has_ended:
            return awaited.result()
        awaited.heed_kill()
        if not self.wait_for_completion:
            if awaited.outlives_its_task:
                return job_result(awaited.job, awaited.service.project_id)
            self.log.info(
                "Job %s was submitted by a try that waited for it, and a reaper cancels it when "
                "this task has ended. So it is waited for.",
                awaited.job_id,
            )
        if not self.deferrable:
            return awaited.wait_for_result()
        deadline = awaited.deadline
        left = None if deadline is None else timedelta(seconds=max(0.0, deadline - time.time()))
        self.defer(
            trigger=self._trigger(awaited, deadline),
            method_name="execute_complete",
            kwargs={"job_id": awaited.job_id},
            timeout=None if left is None else left + BACKSTOP,
        )

    def _trigger(self, awaited: AwaitedJob, deadline: float | None) -> AIPTrainingJobTrigger:
        return AIPTrainingJobTrigger(
            job_id=awaited.job_id,
            project_id=awaited.service.project_id,
            service=self.hook.settings.service,
            api_endpoint=awaited.service.api_endpoint,
            gcp_conn_id=self.gcp_conn_id,
            impersonation_chain=self.impersonation_chain,
            poll_interval=self.poll_interval,
            deadline=deadline,
            cancel_on_kill=self.cancel_on_kill,
        )

    def _wait_for_old_attempt(self, context: Context, awaited: AwaitedJob) -> Any:
        deadline = time.time() + OLD_ATTEMPT_LIMIT
        if self.deferrable:
            self.defer(
                trigger=self._trigger(awaited, deadline),
                method_name="execute_after_end",
                kwargs={"job_id": awaited.job_id},
            )
        awaited.wait(deadline)
        if not awaited.has_ended:
            raise _cancelling_too_long(awaited.job_id)
        return self._obtain_and_wait(context)

    def on_kill(self) -> None:
        """Wake the waiting loop, which asks Airflow whether the task was given up.

        Nothing more is done here: this runs in a signal handler, where a call to Airflow can
        block for ever.
        """
        self._kill.was_received = True

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        """Go on after a deferral; cancel the job if Airflow's own limit on triggers ended it.

        A trigger that crashed or can't be loaded leaves the job alone: the next try attaches.
        """
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            from airflow_aiptraining.core.attempts import Ledger
            from airflow_aiptraining.operators.submission import LEDGER_KEY

            ledger = Ledger.from_json(context["task_state_store"].get(LEDGER_KEY))
            if ledger is None:
                raise
            job = {"jobId": ledger.job_id}
            return self._awaited(context, job, self._service_at(ledger)).time_out()

    # Judging ----------------------------------------------------------------------------------

    def _is_strange(self, event: Any, job_id: str | None) -> bool:
        """Tell whether Airflow gave this task the event of another task's trigger.

        Seen on SQLite, which gives a new trigger the id of one that was just deleted while the
        triggerer still runs that one.
        """
        told = event.get("job_id") if isinstance(event, Mapping) else None
        if told is not None and job_id in (None, told):
            return False
        self.log.warning(
            "The event is of %s; this task waits for job %s, and looks for it anew.",
            f"job {told}" if told else "another kind of trigger",
            job_id,
        )
        return True

    def execute_complete(self, context: Context, event: Any, job_id: str | None = None) -> Any:
        """Judge the job that the trigger waited for.

        :param job_id: of the job that this task deferred for; ``None`` for a task that an earlier
            version deferred.
        """
        from airflow_aiptraining.exceptions import ServiceError
        from airflow_aiptraining.services.retries import patiently

        if self._is_strange(event, job_id):
            return self._obtain_and_wait(context)
        service = self.hook.get_service(event["project_id"], api_endpoint=event["api_endpoint"])
        job_id = event["job_id"]
        if event["event"] == "error":
            raise ServiceError(
                f"Job {in_words(job_id)} can't be read any more: {event['message']} The job may go "
                "on; a retry of the task looks for it."
            )
        if event["event"] == "timeout":
            return self._awaited(context, {"jobId": job_id}, service).time_out()
        awaited = self._awaited(context, patiently(lambda: service.get_job(job_id)), service)
        with awaited.cancelled_on_task_timeout():
            return self._wait(awaited)


class _KeptForEver:
    """Airflow's task state store, whose entries otherwise expire after 30 days."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def get(self, key: str) -> Any:
        return self._store.get(key)

    def set(self, key: str, value: Any) -> None:
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        self._store.set(key, value, retention=NEVER_EXPIRE)


@contextlib.contextmanager
def _no_retry_for_bad_input() -> Iterator[None]:
    """Fail the task for good on errors that another try would meet again."""
    from airflow_aiptraining.exceptions import (
        AIPTrainingError,
        ServiceError,
        StaleTryError,
        TransientServiceError,
    )

    try:
        yield
    except (TransientServiceError, StaleTryError):
        raise
    except AIPTrainingError as error:
        if isinstance(error, ServiceError) and error.status in (401, 403, 404, 0):
            raise  # rights and projects get mended; a retry may find them so
        raise AirflowFailException(str(error)) from error


def _cancelling_too_long(job_id: str) -> Exception:
    from airflow_aiptraining.exceptions import JobTimeoutError

    return JobTimeoutError(
        f"Job {in_words(job_id)} has been CANCELLING for over {OLD_ATTEMPT_LIMIT / 60:.0f} "
        "minutes; no new attempt is made beside it. Look at the service, then retry the task."
    )


def _positive(seconds: float, name: str) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ValueError(f"{name} must be a number of seconds above 0, not {seconds!r}.")
    return float(seconds)
