"""The Job's shapes against the API's discovery document, field by field, in both directions.

The document ships with google-api-python-client, so the test needs no network and follows that
package's releases: a field that Google adds or drops fails here first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import googleapiclient
import pytest

from airflow_aiptraining.core import job_shapes, machines
from airflow_aiptraining.core.job import check_job, wire_job
from airflow_aiptraining.core.job_scalars import AcceleratorType, ScaleTier, WireFormat
from airflow_aiptraining.core.states import JobState

DOCUMENT = json.loads(
    (
        Path(googleapiclient.__file__).parent / "discovery_cache" / "documents" / "ml.v1.json"
    ).read_text()
)
SCHEMAS: dict[str, Any] = DOCUMENT["schemas"]

#: What gcloud 528's own messages have beyond the public document; the service knows these too.
GCLOUD_ONLY_FIELDS = {
    "Job": {"explanationInput", "explanationOutput"},
    "TrainingInput": {"nasJobSpec"},
    "Scheduling": {"resilientToWorkerRestart", "strategy"},
    "TrainingOutput": {"nasJobOutput"},
    "PredictionInput": {
        "accelerator",
        "framework",
        "initialWorkerCount",
        "tagsOverride",
        "workerType",
    },
}
GCLOUD_ONLY_VALUES = {
    ("HyperparameterSpec", "algorithm"): {"POPULATION_BASED_TRAINING"},
    ("PredictionInput", "dataFormat"): {"FILE_LIST"},
    ("PredictionInput", "outputDataFormat"): {"FILE_LIST"},
}


def short_name(schema: str) -> str:
    """Return a schema's name without prefixes: the name of our class."""
    return schema.rsplit("_", 1)[-1]


def references(definition: dict[str, Any]) -> Iterator[str]:
    if "$ref" in definition:
        yield definition["$ref"]
    for nested in ("items", "additionalProperties"):
        if nested in definition:
            yield from references(definition[nested])


def reachable_from_job() -> list[str]:
    found: list[str] = []
    todo = ["GoogleCloudMlV1__Job"]
    while todo:
        name = todo.pop()
        if name not in found:
            found.append(name)
            for definition in SCHEMAS[name].get("properties", {}).values():
                todo.extend(references(definition))
    return sorted(found)


REACHABLE = reachable_from_job()
FIELDS = [
    pytest.param(short_name(schema), key, definition, id=f"{short_name(schema)}.{key}")
    for schema in REACHABLE
    for key, definition in SCHEMAS[schema]["properties"].items()
]


def model_of(name: str) -> type[job_shapes.Message]:
    model = getattr(job_shapes, name)
    assert issubclass(model, job_shapes.Message)
    return model


def annotation_of(model: type[job_shapes.Message], key: str) -> Any:
    (field,) = [each for each in model.model_fields.values() if each.alias == key]
    inner, none = get_args(field.annotation)
    assert none is type(None), "no field is required by its shape: files may be partial"
    return inner


def as_discovery(annotation: Any) -> dict[str, Any]:
    """Write a field's type as the discovery document would."""
    if get_origin(annotation) is list:
        return {"type": "array", "items": as_discovery(get_args(annotation)[0])}
    if get_origin(annotation) is dict:
        return {"type": "object", "additionalProperties": as_discovery(get_args(annotation)[1])}
    if isinstance(annotation, type) and issubclass(annotation, job_shapes.Message):
        return {"$ref": annotation.__name__}
    base, *metadata = get_args(annotation)
    formats = [each for each in metadata if isinstance(each, WireFormat)]
    if not formats:
        return {"type": "string", "enum": set(get_args(base))}
    wire = formats[0]
    return {"type": wire.type, "format": wire.format} if wire.format else {"type": wire.type}


def stripped(definition: dict[str, Any]) -> dict[str, Any]:
    """Keep of a field's definition what says how its value looks."""
    if "$ref" in definition:
        return {"$ref": short_name(definition["$ref"])}
    kept = {key: definition[key] for key in ("type", "format") if key in definition}
    if "enum" in definition:
        kept["enum"] = set(definition["enum"])
    for nested in ("items", "additionalProperties"):
        if nested in definition:
            kept[nested] = stripped(definition[nested])
    return kept


def test_the_walk_reaches_the_messages_it_is_about() -> None:
    names = {short_name(schema) for schema in REACHABLE}

    assert {"Job", "TrainingInput", "ReplicaConfig", "ParameterSpec", "HyperparameterOutput"} <= (
        names
    )
    assert len(FIELDS) > 100


@pytest.mark.parametrize(("name", "key", "definition"), FIELDS)
def test_every_field_of_the_document_is_in_our_shapes_with_its_type(
    name: str, key: str, definition: dict[str, Any]
) -> None:
    ours = as_discovery(annotation_of(model_of(name), key))
    theirs = stripped(definition)
    if "enum" in theirs:
        theirs["enum"] |= GCLOUD_ONLY_VALUES.get((name, key), set())

    assert ours == theirs


@pytest.mark.parametrize("schema", REACHABLE, ids=short_name)
def test_every_field_of_ours_is_in_the_document_or_known_from_gcloud(schema: str) -> None:
    name = short_name(schema)
    ours = {field.alias for field in model_of(name).model_fields.values()}
    theirs = set(SCHEMAS[schema]["properties"])

    assert ours - theirs == GCLOUD_ONLY_FIELDS.get(name, set())


@pytest.mark.parametrize(
    "name", ["ExplanationConfig", "IntegratedGradientsAttribution", "XraiAttribution"]
)
def test_messages_of_explanation_jobs_hold_what_the_document_has_of_them(name: str) -> None:
    ours = {field.alias for field in model_of(name).model_fields.values()}

    assert set(SCHEMAS[f"GoogleCloudMlV1__{name}"]["properties"]) <= ours


def test_job_states_are_those_of_the_document() -> None:
    job = SCHEMAS["GoogleCloudMlV1__Job"]["properties"]["state"]["enum"]

    assert [state.value for state in JobState] == job


def test_trials_have_the_states_of_jobs() -> None:
    trial = SCHEMAS["GoogleCloudMlV1__HyperparameterOutput"]["properties"]["state"]["enum"]

    assert [state.value for state in JobState] == trial


def test_names_of_tiers_and_accelerators_are_one_list_everywhere() -> None:
    tiers = SCHEMAS["GoogleCloudMlV1__TrainingInput"]["properties"]["scaleTier"]["enum"]
    accelerators = SCHEMAS["GoogleCloudMlV1__AcceleratorConfig"]["properties"]["type"]["enum"]

    assert list(machines.SCALE_TIERS) == list(get_args(get_args(ScaleTier)[0])) == tiers
    assert (
        list(machines.ACCELERATOR_TYPES)
        == list(get_args(get_args(AcceleratorType)[0]))
        == accelerators
    )


def output_only_fields() -> set[str]:
    properties = SCHEMAS["GoogleCloudMlV1__Job"]["properties"]
    marked = {
        key for key, each in properties.items() if each["description"].startswith("Output only")
    }
    return marked | {"trainingOutput", "predictionOutput"}


@pytest.mark.parametrize("key", sorted(output_only_fields()))
def test_output_only_fields_are_refused_on_input(key: str) -> None:
    (violation,) = check_job({key: "x"}, complete=False)

    assert violation.path == key
    assert "set by the service" in violation.message


def test_the_wire_body_has_the_json_types_of_the_document() -> None:
    body = wire_job(
        {
            "jobId": "census_20261121_000000",
            "trainingInput": {
                "region": "us-central1",
                "scaleTier": "CUSTOM",
                "masterType": "n1-standard-8",
                "masterConfig": {
                    "acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": 2},
                    "diskConfig": {"bootDiskSizeGb": "200"},
                },
                "workerType": "n1-standard-8",
                "workerCount": 3,
                "packageUris": ["gs://bucket/trainer-0.0.0.tar.gz"],
                "pythonModule": "trainer.task",
                "runtimeVersion": "2.11",
                "pythonVersion": "3.7",
                "scheduling": {"priority": "5"},
                "hyperparameters": {
                    "maxTrials": "4",
                    "params": [
                        {
                            "parameterName": "rate",
                            "type": "DOUBLE",
                            "minValue": "0.1",
                            "maxValue": 1,
                        }
                    ],
                },
            },
        }
    )

    assert_conforms(body, "GoogleCloudMlV1__Job")


def assert_conforms(value: Any, schema: str) -> None:
    """Check JSON types as the document states them: int64 is text, int32 and double are numbers."""
    for key, item in value.items():
        definition = SCHEMAS[schema]["properties"][key]
        items = item if definition.get("type") == "array" else [item]
        inner = definition["items"] if definition.get("type") == "array" else definition
        for each in items:
            if "$ref" in inner:
                assert_conforms(each, inner["$ref"])
            else:
                expected = {"string": str, "integer": int, "number": float, "boolean": bool}
                assert type(each) is expected[inner["type"]], key
