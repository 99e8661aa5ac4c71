"""Packages a trainer as a step of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import Context


class AIPPackageTrainerOperator(BaseOperator):
    """Builds a trainer's package and puts it into the staging bucket.

    Its result is the package's ``gs://`` URI, for ``packages`` of one or many
    :class:`~airflow_aiptraining.operators.training_job.AIPTrainingJobOperator`.  The object is
    addressed by the content of the sources: unchanged ones are neither built nor uploaded again.

    :param package_path: the trainer's package folder, relative to the DAG file.
    :param module_name: the trainer's main module; checked to be in the package, if given.
    :param staging_bucket: ``gs://bucket[/prefix]``; by default the connection's.
    :param project_id: by default the connection's.
    :param gcp_conn_id: an ``aiptraining`` or ``google_cloud_platform`` connection.
    :param impersonation_chain: service account, or chain of them, to impersonate.
    """

    template_fields: Sequence[str] = (
        "package_path",
        "module_name",
        "staging_bucket",
        "project_id",
        "gcp_conn_id",
        "impersonation_chain",
    )
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        package_path: str,
        module_name: str | None = None,
        staging_bucket: str | None = None,
        project_id: str | None = None,
        gcp_conn_id: str = "aiptraining_default",
        impersonation_chain: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.package_path = package_path
        self.module_name = module_name
        self.staging_bucket = staging_bucket
        self.project_id = project_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain

    def execute(self, context: Context) -> str:
        """Return the package's URI."""
        from airflow_aiptraining.exceptions import InvalidTrainerError, StagingError
        from airflow_aiptraining.hooks.training import AIPTrainingHook
        from airflow_aiptraining.operators.job_request import staging_folder
        from airflow_aiptraining.packaging import check_staging, package_trainer

        hook = AIPTrainingHook(self.gcp_conn_id, self.impersonation_chain)
        staging = staging_folder(self.staging_bucket, hook.settings, None)
        if staging is None:
            raise AirflowFailException(
                f"There is no bucket to upload {self.package_path} to: give staging_bucket, or set "
                f"it on connection {self.gcp_conn_id!r}."
            )
        client = hook.get_storage_client(self.project_id)
        try:
            check_staging(staging, client)
            trainer = package_trainer(
                Path(context["dag"].folder) / self.package_path,
                staging=staging,
                client=client,
                module_name=self.module_name,
            )
        except (InvalidTrainerError, StagingError) as error:
            raise AirflowFailException(str(error)) from error
        return trainer.uri
