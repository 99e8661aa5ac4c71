"""``aiptraining jobs submit``: check a job, stage its trainer, send it, and follow it on request.

Everything is checked before anything is uploaded, and nothing is uploaded for a name that is taken.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_aiptraining.cli_jobs_flags import add_job_flags, as_flag, job_arguments
from airflow_aiptraining.cli_jobs_logs import as_text, follow
from airflow_aiptraining.cli_jobs_place import PATIENCE, Place, add_place, place_of
from airflow_aiptraining.cli_jobs_show import write_job
from airflow_aiptraining.cli_output import note
from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.exceptions import (
    AIPTrainingError,
    InvalidJobError,
    JobCancelledError,
    JobExistsError,
    JobFailedError,
    JobNotFoundError,
    Violation,
)

if TYPE_CHECKING:
    from airflow_aiptraining.operators.job_request import JobRequest
    from airflow_aiptraining.operators.trainer import Trainer
    from airflow_aiptraining.services.ml_v1 import MLv1Service

#: What is told of a job that was submitted, or has ended; ``describe`` tells all.
_SHORT = ("jobId", "state", "startTime", "endTime")


def add_command(verbs: Any) -> None:
    """Add ``jobs submit`` to the parser.

    :param verbs: what ``add_subparsers`` returned.
    """
    submit = verbs.add_parser(
        "submit",
        help="submit a training job",
        usage="aiptraining jobs submit NAME [flags] [-- ARGS ...]",
        description="Submit a training job. What follows -- are the trainer's arguments.",
    )
    submit.add_argument("job_id", metavar="NAME", help="the job's id; used once and never again")
    add_place(submit)
    add_job_flags(submit)
    waiting = submit.add_mutually_exclusive_group()
    waiting.add_argument(
        "--async", dest="is_async", action="store_true", help="don't wait for its end; the default"
    )
    waiting.add_argument(
        "--stream-logs",
        action="store_true",
        help="follow its log, on standard error; exit code 1 if it doesn't succeed",
    )
    submit.add_argument(
        "--format", choices=("yaml", "json"), default="yaml", help="of the result; default: yaml"
    )
    submit.set_defaults(run=_submit, parser=submit)


def _submit(arguments: argparse.Namespace) -> int:
    given = job_arguments(arguments)
    place = place_of(arguments)
    job_id: str = arguments.job_id
    request, trainer = _checked(arguments, given, place)
    service = place.service()
    _check_name_is_free(service, job_id)
    trainer.check_buckets(request, job_id)
    body = trainer.staged(request).body(job_id)
    job = _create(service, body)
    where = f"{job_id}{place.flags}"
    if not arguments.stream_logs:
        note(f"Job {job_id!r} is submitted. See how it is, and follow its log:")
        note(f"  aiptraining jobs describe {where}")
        note(f"  aiptraining jobs logs {where} --follow")
        _tell(job, arguments.format)
        return 0
    note(f"Job {job_id!r} is submitted. Ctrl-C leaves it running.")
    try:
        job = follow(service, job_id, as_text(_to_stderr))
    except KeyboardInterrupt:
        note(f"\nJob {job_id!r} goes on. Follow it: aiptraining jobs logs {where} --follow")
        note(f"or cancel it: aiptraining jobs cancel {where}")
        raise
    _tell(job, arguments.format)
    sys.stdout.flush()
    return _exit_code(job)


def _checked(
    arguments: argparse.Namespace, given: Mapping[str, Any], place: Place
) -> tuple[JobRequest, Trainer]:
    """Return the merged job and its trainer, checked as far as can be without the service.

    :raises InvalidJobError: it breaks rules; all of them are told, with file and line.
    """
    from airflow_aiptraining.core.config import Layer
    from airflow_aiptraining.operators.job_request import merge_request, read_config
    from airflow_aiptraining.operators.trainer import Trainer

    folder, config = Path.cwd(), arguments.config
    request = merge_request(
        config=read_config(config, folder, place.hook.get_storage_client, named=as_flag)
        if config
        else None,
        render=lambda text: text,
        arguments=given,
        params=Layer("params", {}),
        extra_args=(),
        conn_id=place.conn_id,
        settings=place.hook.settings,
        named=lambda name: "arguments after --" if name == "args" else as_flag(name),
    )
    trainer = Trainer.of(
        package_path=arguments.package_path,
        packages=arguments.packages,
        folder=folder,
        staging_bucket=arguments.staging_bucket,
        hook=place.hook,
    )
    violations = trainer.planned(request).violations(arguments.job_id)
    violations += _templates(request, config)
    if trainer.violations(request):
        violations.append(
            Violation(
                "trainingInput.packageUris",
                "there is no bucket to upload the trainer to: give --staging-bucket or --job-dir",
                "--package-path" if arguments.package_path else "--packages",
            )
        )
    if violations:
        raise InvalidJobError(violations)
    for line in request.merged.notes:
        if "jobId is ignored" not in line:
            note(f"note: {line}")
    return request, trainer


def _templates(request: JobRequest, config: str | None) -> Iterator[Violation]:
    """Yield what only Airflow could render; a job must not get it as it is written."""
    from airflow_aiptraining.core.config_layers import leaves

    for path, value in leaves(request.merged.job):
        origin = request.merged.origins.get(path, "")
        is_template = isinstance(value, str) and ("{{" in value or "{%" in value)
        if config and is_template and origin.startswith(config):
            yield Violation(
                path,
                f"{value!r} is a template, and only Airflow renders those: give the value with a "
                "flag, or the arguments after --",
                origin,
            )


def _check_name_is_free(service: MLv1Service, job_id: str) -> None:
    from airflow_aiptraining.services.retries import patiently

    try:
        there = patiently(lambda: service.get_job(job_id), patience=PATIENCE)
    except JobNotFoundError:
        return
    raise AIPTrainingError(
        f"There is a job {job_id!r} already ({JobState.of(there)}, created "
        f"{there.get('createTime', 'some time ago')}), and a name is never used again. Choose "
        "another one. Nothing was uploaded."
    )


def _create(service: MLv1Service, body: dict[str, Any]) -> dict[str, Any]:
    """Submit the job, asking again while the service doesn't answer.

    :raises JobExistsError: somebody else has taken the name in this moment.
    """
    from airflow_aiptraining.services.retries import patiently

    calls = 0

    def create() -> dict[str, Any]:
        nonlocal calls
        calls += 1
        try:
            return service.create_job(body)
        except JobExistsError:
            if calls == 1:
                raise
            # An earlier call may have made it, its answer lost.
            there = service.get_job(body["jobId"])
            if not _is_same(there, body):
                raise
            return there

    return patiently(create, patience=PATIENCE)


def _is_same(job: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Return whether a job has all that was sent; a service may have added defaults."""
    found = job.get("trainingInput", {})
    return all(found.get(name) == value for name, value in body["trainingInput"].items())


def _tell(job: dict[str, Any], form: str) -> None:
    write_job(job if form == "json" else {k: job[k] for k in _SHORT if k in job}, form)


def _exit_code(job: dict[str, Any]) -> int:
    state = JobState.of(job)
    if state.is_successful:
        return 0
    reason = str(job.get("errorMessage") or "the service gives no reason")
    kind = JobCancelledError if state is JobState.CANCELLED else JobFailedError
    raise kind(
        f"Job {job['jobId']!r} has ended as {state}: {reason}",
        job_id=job["jobId"],
        state=str(state),
        error_message=reason,
    )


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
