"""Links shown on a task in the Airflow UI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

_CONSOLE = "https://console.cloud.google.com/ai-platform/jobs"


def job_url(service: str, api_endpoint: str, project_id: str, job_id: str) -> str:
    """Return the address at which a person sees the job.

    :param service: ``local`` shows the job's log at its own endpoint; others Google's console.
    """
    if service == "local":
        return f"{api_endpoint}/logs/{project_id}/{job_id}"
    return f"{_CONSOLE}/{job_id}?project={project_id}"


class AIPTrainingJobLink(BaseOperatorLink):
    """The job of the task's last attempt, from the moment it is submitted."""

    name = "Training job"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the address that the operator pushed at submit.

        Airflow overwrites the pushed address with what this returns, at the end of each leg of a
        task, so it must return the same.
        """
        from airflow.sdk.bases.xcom import BaseXCom

        url = BaseXCom.get_value(key=self.xcom_key, ti_key=ti_key)
        return str(url) if url else ""
