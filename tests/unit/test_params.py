"""The params of the trigger form."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError

from airflow_aiptraining.core import params_schema
from airflow_aiptraining.core.config import params_layer
from airflow_aiptraining.core.overridable import DEFAULT_OVERRIDABLE, is_overridable
from airflow_aiptraining.params import EXTENSION, declared_paths, training_params


def form_kind(param: Param) -> str:
    """Return the kind of field that Airflow's form shows, by the rules of its FieldSelector."""
    kind = next(name for name in param.schema["type"] if name != "null")
    if kind in {"string", "integer", "number"} and "enum" in param.schema:
        return "dropdown"
    return "one line each" if kind == "array" else str(kind)


def resolved(params: dict[str, Param], conf: dict[str, Any]) -> dict[str, Any]:
    """Return what a task finds in its context, as Airflow merges and validates it."""
    merged = ParamsDict(params)
    merged.update(conf)
    return merged.validate()


def values_of(params: dict[str, Param], conf: dict[str, Any]) -> dict[str, Any]:
    """Return the trainingInput that a run with this conf asks for."""
    declared = declared_paths(params)
    layer = params_layer(resolved(params, conf), declared, DEFAULT_OVERRIDABLE)
    result: dict[str, Any] = layer.values.get("trainingInput", {})
    return result


def test_the_schema_file_equals_the_models() -> None:
    """After a change of the models: python -m airflow_aiptraining.core.params_schema."""
    assert params_schema.FILE.read_text(encoding="utf-8") == params_schema.file_text()


def test_the_form_has_a_fitting_field_for_each_thing() -> None:
    kinds = {name: form_kind(param) for name, param in training_params().items()}
    assert kinds == {
        "args": "one line each",
        "scale_tier": "dropdown",
        "region": "string",
        "master_type": "string",
        "master_accelerator_type": "dropdown",
        "master_accelerator_count": "integer",
        "worker_type": "string",
        "worker_count": "integer",
        "worker_accelerator_type": "dropdown",
        "worker_accelerator_count": "integer",
        "parameter_server_type": "string",
        "parameter_server_count": "integer",
        "evaluator_type": "string",
        "evaluator_count": "integer",
        "hyperparameters_max_trials": "integer",
        "hyperparameters_max_parallel_trials": "integer",
        "hyperparameters_max_failed_trials": "integer",
        "scheduling_max_running_time": "string",
        "scheduling_max_wait_time": "string",
        "scheduling_priority": "integer",
        "scheduling_strategy": "dropdown",
        "training_input": "object",
    }


def test_a_form_left_alone_sets_nothing() -> None:
    params = training_params()
    assert values_of(params, {}) == {}
    empty = dict.fromkeys(params)
    assert values_of(params, empty) == {}


def test_a_dag_takes_them_and_a_run_fills_them() -> None:
    with DAG("retrain", params={**training_params(), "own": Param(1, type="integer")}) as dag:
        pass
    conf = {
        "args": ["--epochs", "5", ""],
        "scale_tier": "CUSTOM",
        "worker_count": 3,
        "master_accelerator_type": "NVIDIA_TESLA_T4",
        "scheduling_max_running_time": "7200s",
        "training_input": {"hyperparameters": {"maxTrials": 4}, "workerType": "n1-standard-4"},
        "undeclared": {"serviceAccount": "evil"},
    }
    declared = declared_paths(dag.params)
    assert "own" not in declared
    layer = params_layer(resolved(dict(dag.params.items()), conf), declared, DEFAULT_OVERRIDABLE)
    assert layer.values["trainingInput"] == {
        "args": ["--epochs", "5"],
        "scaleTier": "CUSTOM",
        "workerCount": 3,
        "masterConfig": {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4"}},
        "scheduling": {"maxRunningTime": "7200s"},
        "hyperparameters": {"maxTrials": 4},
        "workerType": "n1-standard-4",
    }
    assert layer.origin("trainingInput.workerCount") == "param worker_count"


@pytest.mark.parametrize(
    "conf",
    [
        {"scale_tier": "HUGE"},
        {"worker_count": -1},
        {"worker_count": "3"},
        {"scheduling_priority": 1001},
        {"scheduling_max_running_time": "2h"},
        {"args": "--epochs 3"},
        {"training_input": {"scaleTeir": "BASIC"}},
        {"training_input": {"serviceAccount": "a@b"}},
        {"training_input": {"masterConfig": {"imageUri": "x"}}},
        {"training_input": {"scheduling": {"priority": "high"}}},
        {"training_input": []},
    ],
)
def test_airflow_refuses_a_bad_run_before_it_starts(conf: dict[str, Any]) -> None:
    with pytest.raises(ParamValidationError):
        resolved(training_params(), conf)


def test_the_object_takes_numbers_as_text_as_config_files_do() -> None:
    conf = {"training_input": {"workerCount": "3", "scheduling": {"priority": None}}}
    assert values_of(training_params(), conf) == {"workerCount": "3"}


def test_defaults_fill_the_form_and_scheduled_runs() -> None:
    params = training_params(
        defaults={
            "args": ["--epochs", "5"],
            "scale_tier": "BASIC",
            "scheduling.maxRunningTime": "60s",
            "training_input": {"hyperparameters": {"goal": "MAXIMIZE"}},
        }
    )
    assert values_of(params, {}) == {
        "args": ["--epochs", "5"],
        "scaleTier": "BASIC",
        "scheduling": {"maxRunningTime": "60s"},
        "hyperparameters": {"goal": "MAXIMIZE"},
    }


def test_a_name_of_the_form_is_understood_wherever_a_path_is() -> None:
    params = training_params(defaults={"scheduling_max_wait_time": "1800s"})
    assert params["scheduling_max_wait_time"].value == "1800s"


def test_choices_and_limits_hold_in_the_form_and_in_the_object() -> None:
    params = training_params(
        choices={"masterType": ["n1-standard-4", "n1-standard-8"], "scaleTier": ["BASIC"]},
        limits={"workerCount": 8},
    )
    assert form_kind(params["master_type"]) == "dropdown"
    assert params["worker_count"].schema["maximum"] == 8
    for conf in (
        {"master_type": "n1-highmem-96"},
        {"scale_tier": "PREMIUM_1"},
        {"worker_count": 9},
        {"training_input": {"masterType": "n1-highmem-96"}},
        {"training_input": {"workerCount": 9}},
        {"training_input": {"workerCount": "9"}},
    ):
        with pytest.raises(ParamValidationError):
            resolved(params, conf)
    assert values_of(params, {"worker_count": 8, "master_type": None}) == {"workerCount": 8}


def test_overridable_decides_which_fields_there_are() -> None:
    params = training_params(["args", "hyperparameters.maxTrials"])
    assert list(params) == ["args", "hyperparameters_max_trials", "training_input"]
    allowed = params["training_input"].schema["properties"]
    assert set(allowed) == {"args", "hyperparameters"}
    assert set(allowed["hyperparameters"]["properties"]) == {"maxTrials"}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("serviceAccount", "service_account"),
        ("masterConfig.imageUri", "master_image_uri"),
        ("packageUris", "package_uris"),
        ("enable_web_access", "enable_web_access"),
    ],
)
def test_a_field_that_an_author_names_gets_a_place_in_the_form(path: str, name: str) -> None:
    params = training_params([path])
    assert list(params) == [name, "training_input"]
    assert is_overridable(params[name].schema[EXTENSION], [path])


def test_a_prefix_keeps_two_jobs_apart() -> None:
    params = {**training_params(["args"], prefix="a_"), **training_params(["args"], prefix="b_")}
    assert list(params) == ["a_args", "a_training_input", "b_args", "b_training_input"]
    assert declared_paths(params)["b_training_input"] == ""


def test_an_authors_own_param_takes_part_by_its_mark_or_by_the_objects_name() -> None:
    params = ParamsDict(
        {
            "workers": Param(2, type="integer", **{EXTENSION: "worker_count"}),
            "training_input": {"region": "x"},
            "other": 3,
        }
    )
    assert declared_paths(params) == {"workers": "workerCount", "training_input": ""}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"overridable": ["scaleTeir"]}, "did you mean 'scaleTier'?"),
        ({"defaults": {"epochs": 3}}, "defaults: 'epochs' is no field of trainingInput"),
        ({"defaults": {"serviceAccount": "x"}}, "defaults: 'serviceAccount' is not in overridable"),
        ({"defaults": {"hyperparameters": {}}}, "give 'hyperparameters' inside 'training_input'"),
        ({"choices": {"scaleTier": ["HUGE"]}}, "choices: 'scaleTier' can't have HUGE"),
        ({"limits": {"region": 3}}, "limits: 'region' is no whole number"),
    ],
)
def test_an_authors_mistake_is_told_where_the_dag_is_parsed(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        training_params(**arguments)


def test_parsing_a_dag_needs_neither_the_models_nor_yaml() -> None:
    code = (
        "import airflow.sdk, sys; before = set(sys.modules)\n"
        "from airflow_aiptraining.params import training_params; training_params()\n"
        "new = set(sys.modules) - before\n"
        "print([n for n in new if n.split('.')[0] in ('pydantic', 'yaml', 'googleapiclient')])\n"
        "print([n for n in new if 'aiptraining.core.job' in n])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[-3:] == ["[]", "[]", ""]
