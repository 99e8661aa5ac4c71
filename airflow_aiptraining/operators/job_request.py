"""From an operator's arguments, its config file and the run's params to the body of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_aiptraining.core.attempts import RESERVED_PREFIX, spec_label
from airflow_aiptraining.core.config import (
    Layer,
    MergedJob,
    append_args,
    check,
    merge,
    parse_config,
    render_layer,
)
from airflow_aiptraining.core.job import wire_job
from airflow_aiptraining.core.job_ids import fill_in
from airflow_aiptraining.exceptions import InvalidJobError, StagingError, Violation
from airflow_aiptraining.hooks.settings import LOCAL
from airflow_aiptraining.operators.job_arguments import (
    argument_layers,
    as_argument,
    connection_layer,
)

if TYPE_CHECKING:
    from google.cloud.storage import Client

    from airflow_aiptraining.hooks.settings import ConnectionSettings

#: Stands for the attempt's id where the fingerprint of a body is taken.
_ANY_JOB = "any_attempt"
_MAX_CONFIG = 10_000_000


@dataclass(frozen=True)
class JobRequest:
    """A job as merged and checked, before it has an id.

    :param merged: values and where each came from; may hold ``{job_id}``.
    :param default_runtime: the service has a runtime version for jobs that name none.
    """

    merged: MergedJob
    default_runtime: bool = False

    @property
    def spec(self) -> str:
        """Fingerprint of what is asked for; the same for every attempt."""
        return spec_label(self.body(_ANY_JOB))

    def body(self, job_id: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the wire body of one attempt.

        :param labels: added to the author's own.
        :raises InvalidJobError: the job breaks rules of the API.
        """
        job: Any = fill_in({**self.merged.job, "jobId": job_id}, job_id)
        job["labels"] = {**job.get("labels", {}), **(labels or {})}
        return wire_job(job, default_runtime=self.default_runtime)

    def with_values(self, name: str, training_input: Mapping[str, Any]) -> JobRequest:
        """Return the request with these fields of ``trainingInput`` replaced."""
        job = dict(self.merged.job)
        job["trainingInput"] = {**job.get("trainingInput", {}), **training_input}
        changed = {f"trainingInput.{key}": name for key in training_input}
        origins = {**self.merged.origins, **changed}
        return replace(self, merged=replace(self.merged, job=job, origins=origins))

    def violations(self, job_id: str) -> list[Violation]:
        """Return every rule that the job of an attempt would break."""
        filled: Any = fill_in({**self.merged.job, "jobId": job_id}, job_id)
        found = check(replace(self.merged, job=filled), default_runtime=self.default_runtime)
        labels = self.merged.job.get("labels")
        names = map(str, labels if isinstance(labels, Mapping) else ())
        reserved = {name for name in names if name.startswith(RESERVED_PREFIX)}
        found += [
            Violation(
                f"labels.{name}",
                f"labels that begin with {RESERVED_PREFIX!r} are the operator's own: they say "
                "whose the job is. Choose another name",
                self.merged.origins.get(f"labels.{name}", ""),
            )
            for name in sorted(reserved)
        ]
        return found


def read_config(
    config: str,
    folder: Path,
    storage: Callable[[], Client],
    *,
    named: Callable[[str], str] = as_argument,
) -> tuple[bytes, str]:
    """Return a config file's bytes and the name that messages call it.

    :param config: path, absolute or relative to ``folder``, or ``gs://bucket/object``.
    :param folder: the DAG file's.
    :param storage: gives a client, asked only for ``gs://``.
    :param named: how messages call an argument.
    :raises InvalidJobError: there is no such file, or it can't be read.
    :raises StagingError: there is no such object.
    """
    if config.startswith("gs://"):
        from google.api_core.exceptions import GoogleAPICallError

        bucket, _, name = config.removeprefix("gs://").partition("/")
        try:
            blob = storage().bucket(bucket).blob(name)
            data: bytes = blob.download_as_bytes(end=_MAX_CONFIG, timeout=60)
        except (GoogleAPICallError, ValueError) as error:
            raise StagingError(
                f"The config file {config} can't be read ({type(error).__name__}). Check the URI "
                "and that the connection's account may read the bucket."
            ) from error
        return data, config
    path = folder / config
    try:
        with path.open("rb") as file:
            return file.read(_MAX_CONFIG), config
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidJobError(
            [Violation("", f"the config file can't be read: {reason} ({path})", named("config"))]
        ) from error


def merge_request(
    *,
    config: tuple[bytes, str] | None,
    render: Callable[[str], Any],
    arguments: Mapping[str, Any],
    params: Layer,
    extra_args: Sequence[Any],
    conn_id: str,
    settings: ConnectionSettings,
    named: Callable[[str], str] = as_argument,
) -> JobRequest:
    """Merge a job: config file ← operator's arguments ← the run's params, then extra args.

    :param config: the file's bytes and name, if there is one.
    :param render: renders one text of the file with the task's templates.
    :param arguments: the operator's, rendered.
    :param params: the run's, see :func:`airflow_aiptraining.core.config.params_layer`.
    :param settings: the connection's defaults for what nobody else gives.
    :param named: how messages call an argument.
    :raises InvalidJobError: the file is no config, or a template in it fails.
    """
    layers = []
    if config is not None:
        layers.append(render_layer(parse_config(*config), render))
    layers += [*argument_layers(arguments, named), params]
    given = merge(layers)
    defaults = connection_layer(
        conn_id,
        given.job,
        region=settings.region,
        runtime_version=settings.runtime_version,
        python_version=settings.python_version,
    )
    merged = merge([defaults, *layers])
    merged = append_args(merged, list(extra_args), named("extra_args"))
    return JobRequest(merged, default_runtime=settings.service == LOCAL)


def staging_folder(
    staging_bucket: str | None, settings: ConnectionSettings, job_dir: Any
) -> str | None:
    """Return where packages go: the operator's bucket, the connection's, else job_dir's.

    :return: ``gs://bucket[/prefix]``, or ``None`` where none of the three is given.
    """
    given = staging_bucket or settings.staging_bucket
    if given:
        return given if given.startswith("gs://") else f"gs://{given}"
    if isinstance(job_dir, str) and job_dir.startswith("gs://"):
        return "/".join(job_dir.split("/")[:3])
    return None
