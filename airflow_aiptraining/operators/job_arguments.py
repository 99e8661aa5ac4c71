"""The operator's arguments, named as gcloud's flags, and the fields of a job that they set."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_aiptraining.core.config import Layer

#: argument → field.  Source: flags of ``gcloud ai-platform jobs submit training``, gcloud 528.
FIELD_OF = {
    "labels": "labels",
    "region": "trainingInput.region",
    "scale_tier": "trainingInput.scaleTier",
    "module_name": "trainingInput.pythonModule",
    "job_dir": "trainingInput.jobDir",
    "runtime_version": "trainingInput.runtimeVersion",
    "python_version": "trainingInput.pythonVersion",
    "args": "trainingInput.args",
    "service_account": "trainingInput.serviceAccount",
    "enable_web_access": "trainingInput.enableWebAccess",
    "network": "trainingInput.network",
    "kms_key": "trainingInput.encryptionConfig.kmsKeyName",
    "use_chief_in_tf_config": "trainingInput.useChiefInTfConfig",
    "tpu_tf_version": "trainingInput.workerConfig.tpuTfVersion",
    "master_machine_type": "trainingInput.masterType",
    "master_image_uri": "trainingInput.masterConfig.imageUri",
    "master_accelerator": "trainingInput.masterConfig.acceleratorConfig",
    "worker_machine_type": "trainingInput.workerType",
    "worker_count": "trainingInput.workerCount",
    "worker_image_uri": "trainingInput.workerConfig.imageUri",
    "worker_accelerator": "trainingInput.workerConfig.acceleratorConfig",
    "parameter_server_machine_type": "trainingInput.parameterServerType",
    "parameter_server_count": "trainingInput.parameterServerCount",
    "parameter_server_image_uri": "trainingInput.parameterServerConfig.imageUri",
    "parameter_server_accelerator": "trainingInput.parameterServerConfig.acceleratorConfig",
}


def as_argument(name: str) -> str:
    """Return how messages call an operator's argument."""
    return f"argument {name}"


def argument_layers(
    arguments: Mapping[str, Any], named: Callable[[str], str] = as_argument
) -> Iterator[Layer]:
    """Yield one layer for each argument that was given, so that messages can name it.

    :param arguments: argument name → rendered value; ``None`` is "not given", as is empty text
        (what a template gives for an unset variable).
    :param named: how messages call an argument.
    """
    from airflow_aiptraining.core.config import layer_from

    for name, field in FIELD_OF.items():
        value = arguments.get(name)
        if value is None or value == "":
            continue
        values: Any = value
        for key in reversed(field.split(".")):
            values = {key: values}
        yield layer_from(named(name), values)
    if arguments.get("training_input"):
        yield layer_from(named("training_input"), {"trainingInput": arguments["training_input"]})


def unread_names(conf: Mapping[str, Any], declared: Container[str]) -> list[str]:
    """Return keys of a run's conf that look like fields of a job, but are no declared params.

    Airflow takes any key from whoever triggers a run; only what the DAG declares is read.
    """
    fields = {field.split(".")[1] for field in FIELD_OF.values() if "." in field}
    known = fields | set(FIELD_OF) | {"trainingInput", "training_input"}
    return sorted(name for name in conf if name in known and name not in declared)


def connection_layer(
    conn_id: str, job: Mapping[str, Any], *, region: str, runtime_version: str, python_version: str
) -> Layer:
    """Return the connection's defaults for what nobody else gave.

    :param job: the job as merged so far: a job with a container image has no runtime version.
    """
    from airflow_aiptraining.core.config import layer_from

    given = job.get("trainingInput") or {}
    defaults: dict[str, Any] = {"region": region}
    if not (given.get("masterConfig") or {}).get("imageUri"):
        defaults |= {"runtimeVersion": runtime_version, "pythonVersion": python_version}
    missing = {key: value for key, value in defaults.items() if value and given.get(key) is None}
    return layer_from(f"connection {conn_id}", {"trainingInput": missing})
