"""The trainer of a job: where its sources are, and where its packages go."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from airflow_aiptraining.core.job_ids import fill_in
from airflow_aiptraining.exceptions import Violation
from airflow_aiptraining.operators.job_request import JobRequest, staging_folder

if TYPE_CHECKING:
    from google.cloud.storage import Client

    from airflow_aiptraining.hooks.settings import ConnectionSettings

log = logging.getLogger(__name__)

#: Stands for an archive that is not built yet, where a job is checked before anything is uploaded.
_PLANNED = "gs://staging-bucket/packages/built-at-submit/{}.tar.gz"


class Storage(Protocol):
    """What a trainer needs of a hook."""

    @property
    def settings(self) -> ConnectionSettings:
        """Its staging bucket, if it has one."""
        ...

    def get_storage_client(self, project_id: str | None = None) -> Client:
        """Return Google's own client for it."""
        ...


@dataclass(frozen=True)
class Trainer:
    """What the operator's ``package_path`` and ``packages`` name.

    :param package_path: absolute, or ``None``.
    :param packages: ready archives, local ones absolute.
    :param staging_bucket: the operator's own, or ``None``.
    """

    package_path: Path | None
    packages: tuple[str, ...]
    staging_bucket: str | None
    hook: Storage

    @classmethod
    def of(
        cls,
        *,
        package_path: str | None,
        packages: Sequence[str] | str | None,
        folder: Path,
        staging_bucket: str | None,
        hook: Storage,
    ) -> Trainer:
        """Resolve the operator's arguments.

        :param folder: the DAG file's; relative paths begin there.
        """
        for path in (package_path, packages if isinstance(packages, str) else None):
            if path and Path(path).is_absolute():
                log.info("%s is an absolute path: its content isn't pinned to this run.", path)
        listed = [packages] if isinstance(packages, str) else list(packages or ())
        return cls(
            package_path=folder / package_path if package_path else None,
            packages=tuple(p if p.startswith("gs://") else str(folder / p) for p in listed),
            staging_bucket=staging_bucket or None,
            hook=hook,
        )

    @property
    def _is_given(self) -> bool:
        return self.package_path is not None or bool(self.packages)

    @property
    def _needs_staging(self) -> bool:
        return self.package_path is not None or any(
            not package.startswith("gs://") for package in self.packages
        )

    def _staging(self, request: JobRequest) -> str | None:
        job_dir = request.merged.job.get("trainingInput", {}).get("jobDir")
        return staging_folder(self.staging_bucket, self.hook.settings, job_dir)

    def violations(self, request: JobRequest) -> list[Violation]:
        """Return what is missing for the packages to be staged."""
        if not self._needs_staging or self._staging(request):
            return []
        return [
            Violation(
                "trainingInput.packageUris",
                "there is no bucket to upload the trainer to: give staging_bucket, or job_dir, or "
                "the connection's staging_bucket",
                "argument package_path" if self.package_path else "argument packages",
            )
        ]

    def planned(self, request: JobRequest) -> JobRequest:
        """Return the request with the URIs that it will have, as far as they are known."""
        if not self._is_given:
            return request
        uris = [
            package if package.startswith("gs://") else _PLANNED.format(Path(package).name)
            for package in self.packages
        ]
        if self.package_path is not None:
            uris.append(_PLANNED.format(self.package_path.name))
        return request.with_values("the operator's packages", {"packageUris": uris})

    def check_buckets(self, request: JobRequest, job_id: str) -> None:
        """Check that the buckets of job_dir and packages are there and may be written.

        :raises StagingError: one isn't.
        """
        from airflow_aiptraining.packaging import check_staging

        job_dir: Any = fill_in(request.merged.job.get("trainingInput", {}).get("jobDir"), job_id)
        staging = self._staging(request) if self._needs_staging else None
        client = self.hook.get_storage_client()
        for bucket in dict.fromkeys(
            "/".join(uri.split("/")[:3]) for uri in (staging, job_dir) if uri
        ):
            check_staging(bucket, client)

    def staged(self, request: JobRequest) -> JobRequest:
        """Return the request with its packages in Cloud Storage, built and uploaded if need be.

        :raises InvalidTrainerError: the sources or archives can't be used; nothing was uploaded.
        :raises StagingError: the bucket can't be used.
        """
        from airflow_aiptraining.packaging import package_trainer, stage_archives

        if not self._is_given:
            return request
        module_name = request.merged.job["trainingInput"].get("pythonModule")
        client = self.hook.get_storage_client()
        staging = self._staging(request) or ""
        uris = []
        if self.packages:
            uris += stage_archives(
                self.packages,
                staging=staging,
                client=client,
                module_name=module_name if self.package_path is None else None,
            )
        if self.package_path is not None:
            trainer = package_trainer(
                self.package_path,
                staging=staging,
                client=client,
                module_name=module_name,
            )
            uris.append(trainer.uri)
        return request.with_values("the operator's packages", {"packageUris": uris})
