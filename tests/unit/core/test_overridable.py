"""What a run's params may set."""

from __future__ import annotations

import subprocess
import sys

import pytest

from airflow_aiptraining.core.job_shapes import Message, TrainingInput
from airflow_aiptraining.core.overridable import (
    AUTHOR_ONLY,
    DEFAULT_OVERRIDABLE,
    camel_case,
    is_overridable,
    normal_path,
    snake_case,
)


def field_names(model: type[Message]) -> set[str]:
    return {info.alias or name for name, info in model.model_fields.items()}


@pytest.mark.parametrize(
    "path",
    [
        "args",
        "scaleTier",
        "region",
        "masterType",
        "workerCount",
        "workerConfig.acceleratorConfig.count",
        "hyperparameters.params[0].minValue",
        "scheduling.maxRunningTime",
    ],
)
def test_a_run_may_set_what_a_training_run_needs(path: str) -> None:
    assert is_overridable(path, DEFAULT_OVERRIDABLE)


@pytest.mark.parametrize(
    "path",
    [
        "packageUris",
        "pythonModule",
        "masterConfig.imageUri",
        "workerConfig.containerCommand",
        "masterConfig.containerArgs",
        "serviceAccount",
        "network",
        "jobDir",
        "encryptionConfig.kmsKeyName",
        "enableWebAccess",
        "runtimeVersion",
        "argsAndMore",
    ],
)
def test_a_run_may_not_choose_code_or_identity(path: str) -> None:
    assert not is_overridable(path, DEFAULT_OVERRIDABLE)


def test_a_path_allows_everything_under_it_and_nothing_beside() -> None:
    assert is_overridable("scheduling.priority", ["scheduling"])
    assert is_overridable("hyperparameters.maxTrials", ["hyperparameters.maxTrials"])
    assert not is_overridable("hyperparameters.goal", ["hyperparameters.maxTrials"])
    assert not is_overridable("hyperparameters", ["hyperparameters.maxTrials"])


def test_code_and_identity_need_a_path_of_their_own() -> None:
    assert is_overridable("masterConfig.diskConfig.bootDiskSizeGb", ["masterConfig"])
    assert not is_overridable("masterConfig.imageUri", ["masterConfig"])
    assert is_overridable("masterConfig.imageUri", ["masterConfig", "masterConfig.imageUri"])
    assert is_overridable("encryptionConfig.kmsKeyName", ["encryptionConfig"])


@pytest.mark.parametrize("spelling", ["service_account", "trainingInput.serviceAccount"])
def test_an_author_may_spell_a_path_as_in_python_or_as_in_the_file(spelling: str) -> None:
    assert is_overridable("serviceAccount", [spelling])


def test_every_named_field_exists_in_the_api() -> None:
    fields = field_names(TrainingInput)
    assert {path.split(".")[0] for path in DEFAULT_OVERRIDABLE} <= fields
    assert set(AUTHOR_ONLY) - fields == {"imageUri", "containerCommand", "containerArgs"}


@pytest.mark.parametrize(
    ("snake", "camel"),
    [
        ("scale_tier", "scaleTier"),
        ("use_chief_in_tf_config", "useChiefInTfConfig"),
        ("boot_disk_size_gb", "bootDiskSizeGb"),
        ("args", "args"),
        ("packageURIs", "packageURIs"),
        ("_private", "_private"),
        ("trailing_", "trailing_"),
    ],
)
def test_snake_case_keys_become_the_apis(snake: str, camel: str) -> None:
    assert camel_case(snake) == camel


def test_names_and_paths_agree() -> None:
    assert snake_case("scheduling.maxWaitTime") == "scheduling_max_wait_time"
    assert normal_path("training_input.master_config.image_uri") == "masterConfig.imageUri"


def test_a_dag_file_pays_nothing_for_it() -> None:
    code = (
        "import sys, airflow_aiptraining.core.overridable;"
        "print(sorted({'yaml', 'pydantic', 'airflow', 'googleapiclient'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
