"""What Airflow reads of this provider, as plain data; importing this imports nothing."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": ["string", "null"]}
_SECRET = {"type": ["string", "null"], "format": "password"}

#: Where jobs run, and what they default to.
_AIPTRAINING_FIELDS = {
    "service": {
        "label": "Service",
        "schema": {**_TEXT, "enum": ["local", "ml_v1"], "default": "local"},
        "description": "local: the embedded service. ml_v1: any AI Platform Training endpoint.",
    },
    "api_endpoint": {
        "label": "API endpoint",
        "schema": _TEXT,
        "description": "URL of the service; for 'local' the one that 'aiptraining serve' prints.",
    },
    "storage_endpoint": {
        "label": "Storage endpoint",
        "schema": _TEXT,
        "description": "Empty: Google Cloud Storage; for 'local' the API endpoint.",
    },
    "logging_endpoint": {
        "label": "Logging endpoint",
        "schema": _TEXT,
        "description": "Empty: Google Cloud Logging; for 'local' the API endpoint.",
    },
    "deployment": {
        "label": "Deployment",
        "schema": _TEXT,
        "description": "Names this Airflow among others that use the same project, e.g. 'prod-eu'. "
        "[aiptraining] deployment in airflow.cfg wins.",
    },
    "region": {
        "label": "Region",
        "schema": _TEXT,
        "description": "Of jobs that name none, e.g. europe-west1.",
    },
    "staging_bucket": {
        "label": "Staging bucket",
        "schema": _TEXT,
        "description": "For trainers' packages, e.g. gs://my-bucket.",
    },
    "runtime_version": {
        "label": "Runtime version",
        "schema": _TEXT,
        "description": "Of jobs that name neither this nor an image, e.g. 2.11.",
    },
    "python_version": {
        "label": "Python version",
        "schema": _TEXT,
        "description": "Of jobs that name neither this nor an image, e.g. 3.7.",
    },
}

#: Google's own credential extras; a form inherits nothing from the parent hook.
_GOOGLE_FIELDS = {
    "project": {
        "label": "Project Id",
        "schema": _TEXT,
        "description": "Empty with 'local': local. Else that of the credentials.",
    },
    "key_path": {"label": "Keyfile Path", "schema": _TEXT},
    "keyfile_dict": {"label": "Keyfile JSON", "schema": _SECRET},
    "credential_config_file": {"label": "Credential Configuration File", "schema": _TEXT},
    "scope": {"label": "Scopes (comma separated)", "schema": _TEXT},
    "key_secret_name": {"label": "Keyfile Secret Name (in GCP Secret Manager)", "schema": _TEXT},
    "key_secret_project_id": {
        "label": "Keyfile Secret Project Id (in GCP Secret Manager)",
        "schema": _TEXT,
    },
    "num_retries": {
        "label": "Number of Retries",
        "schema": {"type": ["integer", "null"], "default": 5},
    },
    "impersonation_chain": {"label": "Impersonation Chain", "schema": _TEXT},
    "idp_issuer_url": {
        "label": "IdP Token Issue URL (Client Credentials Grant Flow)",
        "schema": _TEXT,
    },
    "client_id": {"label": "Client ID (Client Credentials Grant Flow)", "schema": _TEXT},
    "client_secret": {"label": "Client Secret (Client Credentials Grant Flow)", "schema": _SECRET},
    "idp_extra_parameters": {"label": "IdP Extra Request Parameters", "schema": _TEXT},
    "is_anonymous": {
        "label": "Anonymous credentials (ignores all other settings)",
        "schema": {"type": ["boolean", "null"], "default": False},
    },
    "quota_project_id": {"label": "Quota Project ID", "schema": _TEXT},
}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata.  Source: Airflow's ``provider_info.schema.json``."""
    integration = "AI Platform Training"
    package = "airflow_aiptraining"
    return {
        "package-name": "airflow-aiptraining",
        "name": integration,
        "description": "Retrain models with AI Platform Training (ML v1) jobs.",
        "integrations": [
            {
                "integration-name": integration,
                "external-doc-url": "https://cloud.google.com/ai-platform/training/docs",
                "tags": ["gcp"],
            }
        ],
        "operators": [
            {
                "integration-name": integration,
                "python-modules": [
                    f"{package}.operators.package",
                    f"{package}.operators.training_job",
                    f"{package}.operators.export",
                    f"{package}.operators.cancel",
                    f"{package}.operators.reap",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": integration,
                "python-modules": [
                    f"{package}.sensors.training_job",
                    f"{package}.sensors.model_export",
                ],
            }
        ],
        "hooks": [
            {"integration-name": integration, "python-modules": [f"{package}.hooks.training"]}
        ],
        "triggers": [
            {
                "integration-name": integration,
                "python-modules": [f"{package}.triggers.training_job"],
            }
        ],
        "connection-types": [
            {
                "connection-type": "aiptraining",
                "hook-class-name": f"{package}.hooks.training.AIPTrainingHook",
                "hook-name": integration,
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port", "extra"],
                    "relabeling": {},
                    "placeholders": {},
                },
                "conn-fields": {**_AIPTRAINING_FIELDS, **_GOOGLE_FIELDS},
            }
        ],
        "extra-links": [f"{package}.links.AIPTrainingJobLink"],
        "config": {
            "aiptraining": {
                "description": "Settings of the AI Platform Training provider.",
                "options": {
                    "deployment": {
                        "description": (
                            "Names this Airflow among others that submit jobs to the same project "
                            "(dev and prod have equal run ids). Required for ml_v1, unless the "
                            "connection has one."
                        ),
                        "type": "string",
                        "version_added": "0.1.0",
                        "example": "prod-eu",
                        "default": "",
                    },
                    "request_budget": {
                        "description": (
                            "Requests a minute, at most, with which one process (a triggerer) "
                            "reads the jobs that deferred tasks wait for, over all projects and "
                            "connections. It wins over poll_interval; the log says so."
                        ),
                        "type": "integer",
                        "version_added": "0.1.0",
                        "example": "600",
                        "default": "240",
                    },
                },
            }
        },
    }
