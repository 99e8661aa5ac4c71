from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_aiptraining.core.job import check_job, wire_job
from airflow_aiptraining.exceptions import InvalidJobError

GOOD: dict[str, Any] = {
    "jobId": "census_20261121_000000",
    "trainingInput": {
        "region": "us-central1",
        "scaleTier": "BASIC",
        "packageUris": ["gs://my-bucket/packages/trainer-0.0.0.tar.gz"],
        "pythonModule": "trainer.task",
        "runtimeVersion": "2.11",
        "pythonVersion": "3.7",
        "jobDir": "gs://my-bucket/census",
        "args": ["--epochs", "3"],
    },
}
CONTAINER: dict[str, Any] = {
    "jobId": "mnist_1",
    "trainingInput": {"region": "us-central1", "masterConfig": {"imageUri": "gcr.io/p/mnist:v1"}},
}
CUSTOM = {"scaleTier": "CUSTOM", "masterType": "n1-standard-8"}


def with_input(base: Mapping[str, Any] = GOOD, **fields: Any) -> dict[str, Any]:
    """Return a good job with other fields in its trainingInput; ``None`` takes one away."""
    job = copy.deepcopy(dict(base))
    job["trainingInput"].update(fields)
    return job


def tuning(*params: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return with_input(hyperparameters={"params": list(params), **fields})


def partly(**fields: Any) -> list[str]:
    return told({"trainingInput": fields}, complete=False)


def told(job: Any, **options: Any) -> list[str]:
    """Return violations as ``path: message``."""
    return [f"{each.path}: {each.message}" for each in check_job(job, **options)]


def only(job: Any, **options: Any) -> str:
    """Return the one violation of a job."""
    (text,) = told(job, **options)
    return text


RATE = {"parameterName": "rate", "type": "DOUBLE", "minValue": 0.001, "maxValue": 0.1}


# --- good jobs


@pytest.mark.parametrize(
    "job",
    [
        GOOD,
        CONTAINER,
        with_input(scaleTier=None),
        with_input(CONTAINER, args=["--epochs", "1"], useChiefInTfConfig=True),
        with_input(pythonVersion="3.11", runtimeVersion="2.19"),
        with_input(pythonVersion="2.7", runtimeVersion="1.15"),
        with_input(jobDir="gs://my-bucket"),
        with_input(jobDir="gs://my-bucket/{job_id}/"),
        with_input(scheduling={"maxWaitTime": "1800s", "maxRunningTime": "1.5s", "priority": 1000}),
        with_input(serviceAccount="trainer@my-project.iam.gserviceaccount.com"),
        with_input(network="projects/12345/global/networks/my-vpc"),
        with_input(
            encryptionConfig={
                "kmsKeyName": "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k"
            }
        ),
        with_input(CONTAINER, masterConfig={"imageUri": "gcr.io/p/i", "containerArgs": ["--x"]}),
        GOOD | {"labels": {"team": "ads", "été": "größe-1_x", "empty": "", "job": "j-{job_id}"}},
        tuning(RATE, maxTrials=5),
        tuning({"parameterName": "a", "type": "CATEGORICAL", "categoricalValues": ["x"]}),
        tuning({"parameterName": "a", "type": "DISCRETE", "discreteValues": [1, 2.5]}),
        tuning(
            {"parameterName": "a", "type": "INTEGER", "minValue": 1, "maxValue": 3},
            algorithm="GRID_SEARCH",
        ),
    ],
)
def test_a_good_job_has_no_violations(job: dict[str, Any]) -> None:
    assert told(job) == []


def test_the_documents_distributed_example_is_good() -> None:
    """Source: "run a training job", example 2; partial, values as YAML text."""
    example = {
        "trainingInput": {
            "scaleTier": "CUSTOM",
            "masterType": "complex_model_m",
            "workerType": "complex_model_m",
            "parameterServerType": "large_model",
            "workerCount": "9",
            "parameterServerCount": "3",
            "runtimeVersion": "2.11",
            "pythonVersion": "3.7",
            "scheduling": {"maxWaitTime": "3600s", "maxRunningTime": "7200s"},
        }
    }

    assert told(example, complete=False) == []


def test_the_documents_container_example_without_scale_tier_is_good() -> None:
    """Source: "custom containers", distributed example: types and counts, no tier."""
    image = {"imageUri": "gcr.io/p/dist:1"}

    job = with_input(
        CONTAINER,
        masterType="complex_model_m",
        masterConfig=image,
        workerType="complex_model_m",
        workerConfig=image,
        workerCount=9,
        parameterServerType="large_model",
        parameterServerConfig=image,
        parameterServerCount=3,
    )

    assert told(job) == []


def test_a_tpu_worker_goes_with_a_compute_engine_master() -> None:
    """Source: "using TPUs", custom TPU machine: cloud_tpu worker, n1 master."""
    job = with_input(
        CONTAINER,
        **CUSTOM,
        workerType="cloud_tpu",
        workerCount=1,
        workerConfig={
            "tpuTfVersion": "2.11",
            "acceleratorConfig": {"type": "TPU_V2", "count": "8"},
        },
    )

    assert told(job) == []


# --- keys


def test_an_unknown_key_is_answered_with_the_nearest() -> None:
    assert partly(scaleTeir="BASIC") == [
        "trainingInput.scaleTeir: unknown field; did you mean 'scaleTier'?"
    ]


def test_a_misspelt_field_is_not_called_missing_as_well() -> None:
    job = with_input(pythonModul="trainer.task")
    del job["trainingInput"]["pythonModule"]

    assert only(job) == "trainingInput.pythonModul: unknown field; did you mean 'pythonModule'?"


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (
            {"trainingInput": {"diskConfig": {"bootDiskSizeGb": 10}}},
            "trainingInput.diskConfig: unknown field here; it belongs in "
            "trainingInput.masterConfig.diskConfig (or ",
        ),
        ({"region": "x"}, "region: unknown field here; it belongs in trainingInput.region"),
        (
            {"trainingInput": {"labels": {}}},
            "trainingInput.labels: unknown field here; it belongs in labels",
        ),
        (
            {"trainingInput": {"maxRunningTime": "1s"}},
            "trainingInput.maxRunningTime: unknown field here; it belongs in "
            "trainingInput.scheduling.maxRunningTime",
        ),
        (
            {"trainingInput": {"psCount": 3}},
            "trainingInput.psCount: unknown field; did you mean 'parameterServerCount'?",
        ),
        ({"trainingInput": {"env": {}}}, "trainingInput.env: unknown field; the API has none for "),
        ({"trainingInput": {"xyzzy": 1}}, "trainingInput.xyzzy: unknown field; the API has no "),
        (
            {"trainingInput": {"hyperparameters": {"params": [{"minvalue": 1}]}}},
            "trainingInput.hyperparameters.params[0].minvalue: unknown field; did you mean "
            "'minValue'?",
        ),
    ],
)
def test_a_key_in_the_wrong_place_is_answered_with_the_right_one(
    job: dict[str, Any], expected: str
) -> None:
    assert only(job, complete=False).startswith(expected)


def test_snake_case_keys_are_read_as_googles_parsers_do() -> None:
    job = {
        "job_id": "a",
        "training_input": {
            "region": "us-central1",
            "master_config": {"image_uri": "gcr.io/p/i"},
            "use_chief_in_tf_config": True,
        },
    }

    assert wire_job(job) == {
        "jobId": "a",
        "trainingInput": {
            "region": "us-central1",
            "masterConfig": {"imageUri": "gcr.io/p/i"},
            "useChiefInTfConfig": True,
        },
    }


def test_a_key_in_both_spellings_is_a_violation() -> None:
    assert partly(scale_tier="BASIC", scaleTier="BASIC") == [
        "trainingInput.scaleTier: given twice, as 'scale_tier' and as 'scaleTier'; keep one"
    ]


def test_keys_of_labels_are_the_users_own() -> None:
    job = GOOD | {"labels": {"my_team": "a", "other-key": "b"}}

    assert wire_job(job)["labels"] == {"my_team": "a", "other-key": "b"}


@pytest.mark.parametrize("key", ["predictionInput", "explanationInput"])
def test_inputs_of_other_jobs_are_refused_by_name(key: str) -> None:
    assert "only training jobs are submitted" in only({key: {"anything": 1}}, complete=False)


def test_output_only_fields_are_refused() -> None:
    assert only(GOOD | {"state": "QUEUED"}) == (
        "state: set by the service; remove it from what you submit"
    )


# --- values


@pytest.mark.parametrize(
    ("field", "value", "advice"),
    [
        ("runtimeVersion", 2.1, "write it in quotes, as it was meant (as a number, 2.10 is read"),
        ("pythonModule", 3, "write it in quotes: '3'"),
        ("region", True, "write it in quotes: 'true'"),
        ("region", ["us"], "text is expected, not a list"),
        ("args", "--epochs", "a list is expected, not '--epochs'; write it as ['--epochs']"),
        ("args", "--epochs 3", "write it as ['--epochs', '3']"),
        ("args", {"a": 1}, "a list is expected, not a mapping"),
        ("args", [None], "is null"),
        ("masterConfig", "gcr.io/p/i", "a mapping of fields is expected"),
        ("workerCount", "three", "a whole number is expected, not 'three'"),
        ("workerCount", 1.5, "a whole number is expected, not 1.5"),
        ("workerCount", True, "a whole number is expected, not True"),
        ("workerCount", "010", "begins with 0"),
        ("workerCount", 2**63, "out of range"),
        ("enableWebAccess", "maybe", "true or false is expected, not 'maybe'"),
        ("enableWebAccess", 1, "true or false is expected, not 1"),
        ("scaleTier", "standart-1", "did you mean 'STANDARD_1'?"),
        ("scaleTier", 1, "one of BASIC, "),
    ],
)
def test_a_value_of_the_wrong_type_is_told_with_the_cure(
    field: str, value: Any, advice: str
) -> None:
    (violation,) = check_job({"trainingInput": {field: value}}, complete=False)

    assert violation.path.startswith(f"trainingInput.{field}")
    assert advice in violation.message


@pytest.mark.parametrize(
    ("path", "job"),
    [
        ("jobId", lambda text: GOOD | {"jobId": text}),
        ("labels.team", lambda text: GOOD | {"labels": {"team": text}}),
        ("trainingInput.args[1]", lambda text: with_input(args=["--name", text])),
        ("trainingInput.region", lambda text: with_input(region=text)),
        ("trainingInput.pythonModule", lambda text: with_input(pythonModule=text)),
        ("trainingInput.scaleTier", lambda text: with_input(scaleTier=text)),
        ("trainingInput.serviceAccount", lambda text: with_input(serviceAccount=text)),
        (
            "trainingInput.masterConfig.containerArgs[0]",
            lambda text: with_input(
                CONTAINER, masterConfig={"imageUri": "gcr.io/p/i", "containerArgs": [text]}
            ),
        ),
        (
            "trainingInput.hyperparameters.params[0].categoricalValues[0]",
            lambda text: tuning(
                {"parameterName": "a", "type": "CATEGORICAL", "categoricalValues": [text]}
            ),
        ),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("caf\udce9", "U+DCE9 (half of a surrogate pair) as character 4"),
        ("\ud83d", "U+D83D (half of a surrogate pair) as character 1"),
        ("a\0b", "U+0000 (NUL) as character 2"),
        ("{{ ds }}\0", "U+0000 (NUL) as character 9"),
    ],
    ids=ascii,
)
def test_a_text_that_cannot_be_sent_is_refused_wherever_it_stands(
    path: str, job: Callable[[str], dict[str, Any]], complete: bool, text: str, named: str
) -> None:
    message = f"{path}: holds a character that can't be sent: {named}; remove it"

    assert only(job(text), complete=complete) == message
    with pytest.raises(InvalidJobError):
        wire_job(job(text), complete=complete)


def test_a_key_that_cannot_be_sent_is_told_in_text_that_can() -> None:
    job = GOOD | {"labels": {"a\ud800": "x"}, "b\0": "x"}

    label, field = check_job(job, origins={"labels.a\ud800": "c.yaml:2"})

    assert str(label).startswith("c.yaml:2: labels.a\\ud800: the key holds a character that can't")
    assert str(field) == "b\\u0000: unknown field; the API has no such field"


@pytest.mark.parametrize("text", ["\U0001f600", "é", "\x1b[0m", "\uffff", "a\nb", ""], ids=ascii)
def test_any_other_text_is_an_argument(text: str) -> None:
    assert wire_job(with_input(args=[text]))["trainingInput"]["args"] == [text]


@pytest.mark.parametrize("args", ["{{ x }}", "--day {{ ds }}", "{% if a %}b{% endif %}"])
@pytest.mark.parametrize("complete", [True, False])
def test_a_template_in_the_place_of_a_list_is_not_split(args: str, complete: bool) -> None:
    assert only(with_input(args=args), complete=complete) == (
        f"trainingInput.args: a list is expected, not {args!r}; a template gives one text: write "
        "a list, with templates in its items"
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"workerCount": "9" * 5000}, "a number of 5000 digits is out of range: -9223372036854"),
        ({"workerCount": 10**5000}, "a number of about 5001 digits is out of range: -92233720"),
        ({"scheduling": {"priority": "-" + "9" * 5000}}, "a number of 5000 digits is out of range"),
        ({"scheduling": {"maxWaitTime": "9" * 5000}}, "a duration is seconds with the suffix 's'"),
        ({"scheduling": {"maxWaitTime": 10**5000}}, "not a number of about 5001 digits; write"),
        ({"region": 10**5000}, "text is expected, not a number of about 5001 digits; write it in"),
        ({"enableWebAccess": 10**5000}, "true or false is expected, not a number of about 5001"),
        ({"scaleTier": 10**5000}, "one of BASIC, "),
        ({"args": 10**5000}, "a list is expected, not a number of about 5001 digits"),
        ({"masterConfig": 10**5000}, "a mapping of fields is expected, not a number of about"),
        ({"hyperparameters": {"params": [{"minValue": 10**5000}]}}, "a number is expected, not a"),
        ({10**5000: "x"}, "unknown field"),
        ({"runtimeVersion": "9" * 5000 + ".1"}, "is not a version"),
    ],
    ids=lambda value: ascii(value)[:40] if isinstance(value, str) else "",
)
def test_a_number_of_any_length_is_told_in_our_own_words(
    fields: dict[str, Any], expected: str
) -> None:
    message = only({"trainingInput": fields}, complete=False)

    assert expected in message
    assert "set_int_max_str_digits" not in message


@pytest.mark.parametrize("value", ["NaN", "inf", "-Infinity", float("nan"), float("inf"), "1e999"])
def test_numbers_that_json_cannot_hold_are_refused(value: Any) -> None:
    job = {"trainingInput": {"hyperparameters": {"params": [{"minValue": value}]}}}

    assert "a finite number is expected" in only(job, complete=False)


@pytest.mark.parametrize(
    ("written", "wire"),
    [
        ({"workerCount": "3"}, {"workerCount": "3"}),
        ({"workerCount": 3}, {"workerCount": "3"}),
        ({"workerCount": 3.0}, {"workerCount": "3"}),
        ({"enableWebAccess": "true"}, {"enableWebAccess": True}),
        ({"enableWebAccess": "No"}, {"enableWebAccess": False}),
        ({"scheduling": {"priority": "7"}}, {"scheduling": {"priority": 7}}),
        (
            {"hyperparameters": {"params": [{"minValue": "0.1", "maxValue": 1}]}},
            {"hyperparameters": {"params": [{"minValue": 0.1, "maxValue": 1.0}]}},
        ),
        ({"scaleTier": "standard-1"}, {"scaleTier": "STANDARD_1"}),
        (
            {"masterConfig": {"acceleratorConfig": {"type": "nvidia-tesla-t4", "count": "2"}}},
            {"masterConfig": {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": "2"}}},
        ),
        ({"hyperparameters": {"goal": "minimize"}}, {"hyperparameters": {"goal": "MINIMIZE"}}),
        ({"runtimeVersion": "2.10"}, {"runtimeVersion": "2.10"}),
        ({"args": ("--a", "1")}, {"args": ["--a", "1"]}),
        ({"jobDir": None, "region": "r"}, {"region": "r"}),
    ],
    ids=str,
)
def test_text_and_spellings_become_what_the_api_takes(
    written: dict[str, Any], wire: dict[str, Any]
) -> None:
    assert wire_job({"trainingInput": written}, complete=False) == {"trainingInput": wire}


@pytest.mark.parametrize(
    ("value", "example"),
    [("2h", "'7200s'"), (7200, "'7200s'"), ("7200", "'7200s'"), ("30m", "'1800s'"), ("-5s", "")],
)
def test_a_duration_without_its_suffix_is_answered_with_the_right_one(
    value: Any, example: str
) -> None:
    (message,) = partly(scheduling={"maxRunningTime": value})

    assert "seconds with the suffix 's'" in message
    assert example in message


# --- rules between fields: the job breaks exactly one

BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("bad id", GOOD | {"jobId": "2census"}, "jobId: '2census' is not legal"),
    ("dash in id", GOOD | {"jobId": "my-job"}, "jobId: 'my-job' is not legal"),
    ("long id", GOOD | {"jobId": "a" * 129}, "jobId: has 129 characters"),
    ("label key", GOOD | {"labels": {"Team": "a"}}, "labels.Team: the key 'Team' is not legal"),
    ("label value", GOOD | {"labels": {"a": "B"}}, "labels.a: the value 'B' is not legal"),
    ("long label", GOOD | {"labels": {"a": "b" * 64}}, "labels.a: the value"),
    (
        "many labels",
        GOOD | {"labels": {f"l{number}": "" for number in range(65)}},
        "labels: 65 labels",
    ),
    (
        "count with BASIC",
        with_input(workerCount=3),
        "trainingInput.workerCount: is 3, but scaleTier is BASIC",
    ),
    (
        "type with BASIC",
        with_input(masterType="standard"),
        "trainingInput.masterType: is 'standard', but scaleTier is BASIC",
    ),
    (
        "CUSTOM without master",
        with_input(scaleTier="CUSTOM"),
        "trainingInput.masterType: missing; scaleTier CUSTOM",
    ),
    (
        "count without type",
        with_input(**CUSTOM, workerCount=2),
        "trainingInput.workerType: missing; workerCount needs it",
    ),
    (
        "type without count",
        with_input(**CUSTOM, parameterServerType="n1-standard-4"),
        "trainingInput.parameterServerCount: missing or 0",
    ),
    (
        "type with count 0",
        with_input(**CUSTOM, evaluatorType="n1-standard-4", evaluatorCount="0"),
        "trainingInput.evaluatorCount: missing or 0",
    ),
    (
        "negative count",
        with_input(**CUSTOM, workerType="n1-standard-4", workerCount=-1),
        "trainingInput.workerCount: -1 machines",
    ),
    (
        "mixed categories",
        with_input(**CUSTOM, workerType="complex_model_m", workerCount=1),
        "trainingInput.workerType: 'complex_model_m' is a legacy type and masterType",
    ),
    (
        "no such machine",
        with_input(scaleTier="CUSTOM", masterType="n1-standrd-8"),
        "trainingInput.masterType: 'n1-standrd-8' is not a machine type; did you mean "
        "'n1-standard-8'?",
    ),
    (
        "accelerator with BASIC",
        with_input(masterConfig={"acceleratorConfig": {"type": "nvidia-tesla-t4", "count": 1}}),
        "trainingInput.masterConfig.acceleratorConfig: accelerators need scaleTier CUSTOM",
    ),
    (
        "accelerator on legacy",
        with_input(
            scaleTier="CUSTOM",
            masterType="standard",
            masterConfig={"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": 1}},
        ),
        "trainingInput.masterConfig.acceleratorConfig: accelerators need a Compute Engine type",
    ),
    (
        "accelerator without count",
        with_input(**CUSTOM, masterConfig={"acceleratorConfig": {"type": "NVIDIA_TESLA_T4"}}),
        "trainingInput.masterConfig.acceleratorConfig.count: missing",
    ),
    (
        "accelerator count 0",
        with_input(
            **CUSTOM, masterConfig={"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": 0}}
        ),
        "trainingInput.masterConfig.acceleratorConfig.count: 0 is too small",
    ),
    (
        "accelerator without machine",
        with_input(
            **CUSTOM, workerConfig={"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": 1}}
        ),
        "trainingInput.workerConfig.acceleratorConfig: accelerators need workerType",
    ),
    (
        "GPU on cloud_tpu",
        with_input(
            scaleTier="CUSTOM",
            masterType="cloud_tpu",
            masterConfig={"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": 1}},
        ),
        "trainingInput.masterConfig.acceleratorConfig.type: NVIDIA_TESLA_T4 can't be attached",
    ),
    (
        "image and runtime",
        with_input(CONTAINER, runtimeVersion="2.11"),
        "trainingInput.runtimeVersion: given together with masterConfig.imageUri",
    ),
    (
        "image with module only",
        with_input(CONTAINER, pythonModule="a.b"),
        "trainingInput.pythonModule: given without packageUris",
    ),
    (
        "built-in algorithm",
        with_input(CONTAINER, masterConfig={"imageUri": "gcr.io/cloud-ml-algos/xgboost:latest"}),
        "trainingInput.masterConfig.imageUri: 'gcr.io/cloud-ml-algos/xgboost:latest' is one of",
    ),
    (
        "image with a scheme",
        with_input(CONTAINER, masterConfig={"imageUri": "https://gcr.io/p/i"}),
        "trainingInput.masterConfig.imageUri: 'https://gcr.io/p/i' is not an image's address",
    ),
    (
        "containerArgs without image",
        with_input(args=[], masterConfig={"containerArgs": ["a"]}),
        "trainingInput.masterConfig.containerArgs: needs a custom container",
    ),
    (
        "containerArgs with args",
        with_input(
            CONTAINER, args=["a"], masterConfig={"imageUri": "gcr.io/p/i", "containerArgs": ["b"]}
        ),
        "trainingInput.masterConfig.containerArgs: excludes trainingInput.args",
    ),
    (
        "tpuTfVersion without TPU",
        with_input(CONTAINER, workerConfig={"tpuTfVersion": "2.11"}),
        "trainingInput.workerConfig.tpuTfVersion: is for TPUs only",
    ),
    (
        "tpuTfVersion missing",
        with_input(CONTAINER, scaleTier="BASIC_TPU"),
        "trainingInput.workerConfig.tpuTfVersion: missing; a TPU with a custom container",
    ),
    (
        "disk type",
        with_input(masterConfig={"diskConfig": {"bootDiskType": "ssd"}}),
        "trainingInput.masterConfig.diskConfig.bootDiskType: 'ssd' is not a boot disk",
    ),
    (
        "module is a file",
        with_input(pythonModule="trainer/task.py"),
        "trainingInput.pythonModule: 'trainer/task.py' is not a module's name; it is a module, not "
        "a file: trainer.task",
    ),
    (
        "local package",
        with_input(packageUris=["dist/trainer.tar.gz"]),
        "trainingInput.packageUris[0]: 'dist/trainer.tar.gz' is not a Cloud Storage path",
    ),
    (
        "no archive",
        with_input(packageUris=["gs://my-bucket/trainer"]),
        "trainingInput.packageUris[0]: 'gs://my-bucket/trainer' is no archive",
    ),
    (
        "many packages",
        with_input(packageUris=[f"gs://my-bucket/p{number}.whl" for number in range(101)]),
        "trainingInput.packageUris: 101 packages",
    ),
    (
        "old Python for a new runtime",
        with_input(pythonVersion="2.7"),
        "trainingInput.pythonVersion: Python 2.7 never was in runtime 2.11; it is in runtimes 1.15 "
        "or earlier",
    ),
    (
        "3.5 with 1.15",
        with_input(runtimeVersion="1.15", pythonVersion="3.5"),
        "trainingInput.pythonVersion: Python 3.5 never was in runtime 1.15; it is in runtimes 1.4 "
        "to 1.14",
    ),
    (
        "3.7 with 1.14",
        with_input(runtimeVersion="1.14", pythonVersion="3.7"),
        "trainingInput.pythonVersion: Python 3.7 never was in runtime 1.14",
    ),
    (
        "malformed runtime",
        with_input(runtimeVersion="tf2"),
        "trainingInput.runtimeVersion: 'tf2' is not a version",
    ),
    (
        "--job-dir in args",
        with_input(args=["--epochs", "3", "--job-dir=gs://b/x"]),
        "trainingInput.args[2]: --job-dir is for the service, not for the trainer; its value "
        "belongs in jobDir",
    ),
    (
        "--runtime-version in args",
        with_input(args=["--runtime-version", "2.1"]),
        "trainingInput.args[0]: --runtime-version is for the service",
    ),
    (
        "job_dir without gs://",
        with_input(jobDir="/tmp/x"),
        "trainingInput.jobDir: '/tmp/x' is not a Cloud Storage path",
    ),
    (
        "illegal bucket",
        with_input(jobDir="gs://My_Bucket/x"),
        "trainingInput.jobDir: 'gs://My_Bucket/x' names no legal bucket",
    ),
    (
        "IP address as bucket",
        with_input(jobDir="gs://10.0.0.1/x"),
        "trainingInput.jobDir: 'gs://10.0.0.1/x' names no legal bucket",
    ),
    (
        "short wait",
        with_input(scheduling={"maxWaitTime": "1799s"}),
        "trainingInput.scheduling.maxWaitTime: '1799s' is too short",
    ),
    (
        "no time to run",
        with_input(scheduling={"maxRunningTime": "0s"}),
        "trainingInput.scheduling.maxRunningTime: '0s' leaves the job no time",
    ),
    (
        "priority",
        with_input(scheduling={"priority": 1001}),
        "trainingInput.scheduling.priority: 1001 is out of range",
    ),
    (
        "service account",
        with_input(serviceAccount="trainer"),
        "trainingInput.serviceAccount: 'trainer' is not of the form",
    ),
    (
        "network",
        with_input(network="my-vpc"),
        "trainingInput.network: 'my-vpc' is not of the form",
    ),
    (
        "key",
        with_input(encryptionConfig={"kmsKeyName": "my-key"}),
        "trainingInput.encryptionConfig.kmsKeyName: 'my-key' is not of the form",
    ),
    (
        "tuning nothing",
        tuning(),
        "trainingInput.hyperparameters.params: missing",
    ),
    (
        "one name twice",
        tuning(RATE, RATE),
        "trainingInput.hyperparameters.params[1].parameterName: 'rate' is already the name of",
    ),
    (
        "name that is no flag",
        tuning(RATE | {"parameterName": "learning rate"}),
        "trainingInput.hyperparameters.params[0].parameterName: 'learning rate' can't be passed",
    ),
    (
        "no type",
        tuning({"parameterName": "a"}),
        "trainingInput.hyperparameters.params[0].type: missing",
    ),
    (
        "no bound",
        tuning({"parameterName": "a", "type": "DOUBLE", "minValue": 1}),
        "trainingInput.hyperparameters.params[0].maxValue: missing",
    ),
    (
        "bounds crossed",
        tuning(RATE | {"minValue": 5}),
        "trainingInput.hyperparameters.params[0].minValue: 5.0 is greater than maxValue",
    ),
    (
        "bound not whole",
        tuning({"parameterName": "a", "type": "INTEGER", "minValue": 0.5, "maxValue": 3}),
        "trainingInput.hyperparameters.params[0].minValue: 0.5 is not whole",
    ),
    (
        "log of zero",
        tuning(RATE | {"minValue": 0, "scaleType": "UNIT_LOG_SCALE"}),
        "trainingInput.hyperparameters.params[0].minValue: 0.0 is not positive",
    ),
    (
        "log of discrete zero",
        tuning(
            {
                "parameterName": "a",
                "type": "DISCRETE",
                "discreteValues": [0, 1],
                "scaleType": "UNIT_REVERSE_LOG_SCALE",
            }
        ),
        "trainingInput.hyperparameters.params[0].discreteValues: 0.0 is not positive",
    ),
    (
        "not increasing",
        tuning({"parameterName": "a", "type": "DISCRETE", "discreteValues": [1, 1]}),
        "trainingInput.hyperparameters.params[0].discreteValues: must be strictly increasing",
    ),
    (
        "too many values",
        tuning({"parameterName": "a", "type": "DISCRETE", "discreteValues": list(range(1001))}),
        "trainingInput.hyperparameters.params[0].discreteValues: 1001 values",
    ),
    (
        "no categories",
        tuning({"parameterName": "a", "type": "CATEGORICAL"}),
        "trainingInput.hyperparameters.params[0].categoricalValues: missing",
    ),
    (
        "bound of categories",
        tuning(
            {"parameterName": "a", "type": "CATEGORICAL", "categoricalValues": ["x"], "minValue": 0}
        ),
        "trainingInput.hyperparameters.params[0].minValue: must be unset for type CATEGORICAL",
    ),
    (
        "scale of categories",
        tuning(
            {
                "parameterName": "a",
                "type": "CATEGORICAL",
                "categoricalValues": ["x"],
                "scaleType": "UNIT_LINEAR_SCALE",
            }
        ),
        "trainingInput.hyperparameters.params[0].scaleType: UNIT_LINEAR_SCALE must be unset",
    ),
    (
        "categories of a number",
        tuning(RATE | {"categoricalValues": ["x"]}),
        "trainingInput.hyperparameters.params[0].categoricalValues: belongs to type CATEGORICAL",
    ),
    (
        "grid of doubles",
        tuning(RATE, algorithm="GRID_SEARCH"),
        "trainingInput.hyperparameters.params[0].type: GRID_SEARCH takes",
    ),
    (
        "no trials",
        tuning(RATE, maxTrials=0),
        "trainingInput.hyperparameters.maxTrials: 0 is too small",
    ),
    (
        "resume what is no id",
        tuning(RATE, resumePreviousJobId="my job"),
        "trainingInput.hyperparameters.resumePreviousJobId: 'my job' is not a job id",
    ),
]


@pytest.mark.parametrize(
    ("job", "expected"), [pytest.param(job, text, id=name) for name, job, text in BROKEN]
)
def test_a_broken_rule_is_told_once_with_its_path(job: dict[str, Any], expected: str) -> None:
    assert only(job).startswith(expected)


def test_two_packages_with_one_file_name_are_told_at_both() -> None:
    uris = ["gs://my-bucket/a/t.whl", "gs://my-bucket/b/t.whl"]

    assert [violation.path for violation in check_job(with_input(packageUris=uris))] == [
        "trainingInput.packageUris[0]",
        "trainingInput.packageUris[1]",
    ]


@pytest.mark.parametrize(
    "flag", ["--config", "--region", "--labels", "--worker-count", "--job_dir", "--epochs"]
)
def test_flags_that_a_trainer_may_have_are_its_own(flag: str) -> None:
    assert told(with_input(args=[flag, "x"])) == []


# --- whole and partial jobs


def test_an_empty_job_lacks_everything_a_job_needs() -> None:
    assert [violation.path for violation in check_job({"trainingInput": {}})] == [
        "jobId",
        "trainingInput.region",
        "trainingInput.packageUris",
        "trainingInput.pythonModule",
        "trainingInput.runtimeVersion",
        "trainingInput.pythonVersion",
    ]


def test_a_job_without_training_input_is_told_so() -> None:
    assert only({"jobId": "a", "trainingInput": None}).startswith("trainingInput: missing")


@pytest.mark.parametrize("blank", ["", " "])
def test_blank_texts_and_empty_lists_are_as_good_as_missing(blank: str) -> None:
    job = with_input(region=blank, packageUris=[])

    assert [violation.path for violation in check_job(job)] == [
        "trainingInput.region",
        "trainingInput.packageUris",
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"workerCount": 3},
        {"scaleTier": "CUSTOM"},
        {"masterConfig": {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4"}}},
        {"masterConfig": {"containerArgs": ["a"]}},
        {"hyperparameters": {"maxTrials": 3}},
        {"hyperparameters": {"params": [{"parameterName": "a"}]}},
        {"runtimeVersion": "2.11"},
        {"workerConfig": {"tpuTfVersion": "2.11"}},
    ],
    ids=str,
)
def test_a_partial_file_is_judged_by_what_is_there(fields: dict[str, Any]) -> None:
    assert partly(**fields) == []


def test_a_partial_file_with_a_contradiction_is_refused() -> None:
    assert partly(scaleTier="BASIC", workerCount="3") != []


def test_templates_in_a_partial_file_are_judged_once_they_are_rendered() -> None:
    fields = {
        "workerCount": "{{ params.workers }}",
        "scaleTier": "{{ var.value.tier }}",
        "jobDir": "{{ var.value.bucket }}/x",
        "scheduling": {"maxWaitTime": "{% if x %}1s{% endif %}"},
        "args": ["--date={{ ds }}"],
    }

    assert partly(**fields) == []
    assert wire_job({"trainingInput": fields}, complete=False) == {"trainingInput": fields}
    assert len(told(with_input(**fields))) == 4


def test_a_service_with_a_default_runtime_needs_none_named() -> None:
    job = with_input(runtimeVersion=None, pythonVersion=None)

    assert told(job, default_runtime=True) == []
    assert wire_job(job, default_runtime=True)
    assert len(told(job)) == 2


def test_a_broken_value_does_not_hide_other_violations_nor_make_new_ones() -> None:
    job = with_input(
        scaleTier="CUSTOM",
        masterType="standard",
        workerType="standard",
        workerCount="many",
        scheduling={"priority": 2000, "maxWaitTime": "1h"},
        pythonVersion=3.7,
    )

    assert sorted(violation.path for violation in check_job(job)) == [
        "trainingInput.pythonVersion",
        "trainingInput.scheduling.maxWaitTime",
        "trainingInput.scheduling.priority",
        "trainingInput.workerCount",
    ]


TPU_WORKER = CUSTOM | {"workerType": "cloud_tpu", "workerCount": 1}


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize(
    ("path", "job"),
    [
        ("masterConfig", with_input(masterConfig=[], args=["a"])),
        ("masterConfig", with_input(masterConfig="gcr.io/p/i", runtimeVersion=None)),
        ("masterConfig", with_input(masterConfig=[], packageUris=None)),
        ("masterConfig", with_input(masterConfig=[], packageUris=None, pythonModule=None)),
        ("masterConfig", with_input(masterConfig=[], **TPU_WORKER)),
        (
            "masterConfig",
            with_input(masterConfig=[], args=None, workerConfig={"containerArgs": ["x"]}),
        ),
        ("masterConfg", with_input(masterConfg={"imageUri": "gcr.io/p/i"})),
        ("workerConfig", with_input(workerConfig=[])),
        (
            "masterConfig.acceleratorConfig",
            with_input(
                CONTAINER,
                **CUSTOM,
                masterConfig={
                    "imageUri": "gcr.io/p/i",
                    "tpuTfVersion": "2.11",
                    "acceleratorConfig": [],
                },
            ),
        ),
        ("", GOOD | {"trainingInput": []}),
        ("", GOOD | {"trainingInput": "gs://b/config.yaml"}),
        ("scheduling", with_input(scheduling=[])),
        ("hyperparameters", with_input(hyperparameters=[])),
    ],
)
def test_what_is_no_mapping_or_misspelt_breaks_no_other_rule(
    path: str, job: dict[str, Any], complete: bool
) -> None:
    (violation,) = check_job(job, complete=complete)

    assert violation.path == f"trainingInput.{path}".removesuffix(".")
    assert "a mapping of fields is expected" in violation.message or "did you" in violation.message


def test_what_is_known_beside_a_container_of_the_wrong_kind_is_judged() -> None:
    job = with_input(
        masterConfig=[],
        args=["a"],
        scaleTier="CUSTOM",
        workerConfig={"containerArgs": ["x"], "acceleratorConfig": {"count": 0}},
    )

    assert {violation.path for violation in check_job(job)} == {
        "trainingInput.masterConfig",
        "trainingInput.masterType",
        "trainingInput.workerConfig.acceleratorConfig",
        "trainingInput.workerConfig.acceleratorConfig.count",
        "trainingInput.workerConfig.acceleratorConfig.type",
        "trainingInput.workerConfig.containerArgs",
    }


@pytest.mark.parametrize("job", [None, [], "job", 3], ids=str)
def test_what_is_no_mapping_is_no_job(job: Any) -> None:
    assert "a mapping of fields is expected" in told(job)[0]


# --- where it was written


def test_violations_say_where_the_value_was_written() -> None:
    origins = {
        "trainingInput.workerCount": "config.yaml:7",
        "trainingInput.scaleTier": "operator arguments",
        "trainingInput.args": "config.yaml:9",
    }
    job = with_input(
        scaleTier="CUSTOM",
        workerCount="2",
        args=["--job-dir=x"],
    )

    sources = {violation.path: violation.source for violation in check_job(job, origins=origins)}

    assert sources == {
        # A missing field is where the one stands that makes it necessary.
        "trainingInput.masterType": "operator arguments",
        "trainingInput.workerType": "config.yaml:7",
        # A list's item is where its list stands.
        "trainingInput.args[0]": "config.yaml:9",
    }


def test_a_value_of_unknown_origin_has_no_source() -> None:
    (violation,) = check_job(GOOD | {"jobId": "-"}, origins={"trainingInput": "config.yaml:1"})

    assert violation.source == ""


def test_wire_job_raises_all_violations_at_once() -> None:
    with pytest.raises(InvalidJobError) as caught:
        wire_job(with_input(scaleTeir="x", region=3), origins={"trainingInput.region": "c.yaml:2"})

    text = str(caught.value)
    assert len(caught.value.violations) == 2
    assert "2 problems" in text
    assert "c.yaml:2: trainingInput.region: text is expected" in text


def test_the_caller_keeps_its_job_unchanged() -> None:
    job = with_input(workerCount="x", scale_tier="basic", bogus=[1])
    before = copy.deepcopy(job)

    check_job(job)

    assert job == before


# --- properties

_NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
_TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="{-"), max_size=8
)


def _number(values: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    return values.flatmap(lambda value: st.sampled_from([value, str(value), float(value)]))


def _parameter(name: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.fixed_dictionaries(
            {
                "parameterName": st.just(name),
                "type": st.sampled_from(["INTEGER", "double"]),
                "minValue": _number(st.integers(1, 5)),
                "maxValue": _number(st.integers(6, 9)),
            },
            optional={"scaleType": st.sampled_from(["NONE", "unit-log-scale"])},
        ),
        st.fixed_dictionaries(
            {
                "parameter_name": st.just(name),
                "type": st.just("CATEGORICAL"),
                "categorical_values": st.lists(_TEXTS, min_size=1, max_size=3),
            }
        ),
        st.fixed_dictionaries(
            {
                "parameterName": st.just(name),
                "type": st.just("Discrete"),
                "discreteValues": st.sets(st.integers(-9, 9), min_size=1).map(sorted),
            }
        ),
    )


_MACHINES = st.one_of(
    st.fixed_dictionaries({}, optional={"scaleTier": st.sampled_from(["BASIC", "standard-1"])}),
    st.fixed_dictionaries(
        {
            "masterType": st.sampled_from(["n1-standard-8", "a2-highgpu-1g"]),
            "worker_type": st.just("n1-highmem-8"),
            "workerCount": _number(st.integers(1, 99)),
        },
        optional={
            "scaleTier": st.sampled_from(["CUSTOM", "custom"]),
            "workerConfig": st.fixed_dictionaries(
                {
                    "acceleratorConfig": st.fixed_dictionaries(
                        {
                            "type": st.sampled_from(["nvidia-tesla-t4", "NVIDIA_TESLA_K80"]),
                            "count": _number(st.integers(1, 8)),
                        }
                    )
                }
            ),
        },
    ),
)
_CODE = st.one_of(
    st.fixed_dictionaries(
        {
            "packageUris": st.sets(_NAMES, min_size=1, max_size=3).map(
                lambda names: [f"gs://my-bucket/{name}.whl" for name in sorted(names)]
            ),
            "pythonModule": _NAMES,
            "runtimeVersion": st.sampled_from(["1.15", "2.10", "2.11"]),
            "pythonVersion": st.sampled_from(["3.7", "3.11"]),
        }
    ),
    st.just({"masterConfig": {"image_uri": "gcr.io/p/i:1"}}),
)
_REST = st.fixed_dictionaries(
    {"region": st.sampled_from(["us-central1", "europe-west4"])},
    optional={
        "args": st.lists(_TEXTS, max_size=4),
        "jobDir": _NAMES.map(lambda name: f"gs://my-bucket/{name}"),
        "enableWebAccess": st.sampled_from([True, "true", "no"]),
        "scheduling": st.fixed_dictionaries(
            {},
            optional={
                "priority": _number(st.integers(0, 1000)),
                "max_wait_time": st.integers(1800, 10**6).map("{}s".format),
            },
        ),
        "hyperparameters": st.fixed_dictionaries(
            {
                "params": st.sets(_NAMES, min_size=1, max_size=3).flatmap(
                    lambda names: st.tuples(*map(_parameter, sorted(names))).map(list)
                )
            },
            optional={"maxTrials": _number(st.integers(1, 50)), "goal": st.just("minimize")},
        ),
    },
)
GOOD_JOBS = st.builds(
    lambda job_id, labels, *parts: {
        "jobId": job_id,
        "labels": labels,
        "trainingInput": {key: value for part in parts for key, value in part.items()},
    },
    _NAMES,
    st.dictionaries(_NAMES, _NAMES, max_size=3),
    _MACHINES,
    _CODE,
    _REST,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(GOOD_JOBS)
def test_the_wire_body_of_a_wire_body_is_itself(job: dict[str, Any]) -> None:
    body = wire_job(job)

    assert wire_job(body) == body
    assert json.loads(json.dumps(body, allow_nan=False)) == body


# Keys of every kind of value, so that junk gets past the first level.
_KEYS = st.sampled_from(
    [
        "args",
        "acceleratorConfig",
        "count",
        "discreteValues",
        "hyperparameters",
        "jobDir",
        "jobId",
        "labels",
        "masterConfig",
        "maxWaitTime",
        "minValue",
        "packageUris",
        "params",
        "region",
        "scaleTier",
        "scheduling",
        "state",
        "trainingInput",
        "training_input",
        "type",
        "workerCount",
        "x",
    ]
)
_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(_KEYS, inner, max_size=5)
        | st.fixed_dictionaries({"trainingInput": inner})
    ),
    max_leaves=15,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_JUNK, st.booleans())
def test_whatever_is_given_violations_come_back_and_no_error(job: Any, complete: bool) -> None:
    violations = check_job(job, complete=complete)

    assert len(set(violations)) == len(violations)
    assert all(violation.message for violation in violations)
