from __future__ import annotations

from typing import Any

import pytest

from airflow_aiptraining.core.cluster import (
    cluster_spec,
    count_field,
    primary_name,
    replica_count,
    replica_counts,
    replicas,
    tf_config,
)

INPUT = {"pythonModule": "trainer.task", "runtimeVersion": "2.11"}
ADDRESSES = {
    "master": ["h:1"],
    "worker": ["h:2", "h:3"],
    "ps": ["h:4"],
    "evaluator": [""],
}


@pytest.mark.parametrize(
    ("training_input", "counts"),
    [
        ({}, {"master": 1}),
        ({"scaleTier": "BASIC"}, {"master": 1}),
        ({"scaleTier": "BASIC_GPU"}, {"master": 1}),
        ({"scaleTier": "STANDARD_1"}, {"master": 1, "worker": 4, "ps": 3}),
        ({"scaleTier": "PREMIUM_1"}, {"master": 1, "worker": 19, "ps": 11}),
        ({"scaleTier": "CUSTOM", "masterType": "standard"}, {"master": 1}),
        (
            # The documentation's example of a custom cluster.
            {
                "scaleTier": "CUSTOM",
                "masterType": "complex_model_m",
                "workerType": "complex_model_m",
                "workerCount": "9",
                "parameterServerType": "large_model",
                "parameterServerCount": "3",
            },
            {"master": 1, "worker": 9, "ps": 3},
        ),
        (
            # Types and counts without a tier mean CUSTOM.
            {
                "masterType": "n1-standard-4",
                "workerType": "n1-standard-4",
                "workerCount": 2,
                "evaluatorType": "n1-standard-4",
                "evaluatorCount": 1,
            },
            {"master": 1, "worker": 2, "evaluator": 1},
        ),
        ({"scaleTier": "CUSTOM", "masterType": "standard", "workerCount": "0"}, {"master": 1}),
    ],
    ids=str,
)
def test_cluster_is_what_tier_or_counts_say(
    training_input: dict[str, Any], counts: dict[str, int]
) -> None:
    assert replica_counts(training_input) == counts
    assert replica_count(training_input) == sum(counts.values())


def test_replicas_are_numbered_within_their_role_the_master_first() -> None:
    made = list(replicas({"scaleTier": "STANDARD_1"}))

    assert made == [
        ("master", 0),
        *(("worker", position) for position in range(4)),
        *(("ps", position) for position in range(3)),
    ]


def test_field_that_makes_a_job_large_is_named() -> None:
    custom = {"masterType": "m", "workerType": "w", "workerCount": "2"}
    servers = {"parameterServerType": "p", "parameterServerCount": "3"}

    assert count_field({"scaleTier": "PREMIUM_1"}) == "scaleTier"
    assert count_field(custom) == "workerCount"
    assert count_field(custom | servers) == "parameterServerCount"


@pytest.mark.parametrize(
    ("training_input", "name"),
    [
        ({"runtimeVersion": "2.1"}, "chief"),
        ({"runtimeVersion": "2.11"}, "chief"),
        ({"runtimeVersion": "2.0"}, "master"),
        ({"runtimeVersion": "1.15"}, "master"),
        ({"runtimeVersion": "odd"}, "chief"),
        ({}, "chief"),
        ({"masterConfig": {"imageUri": "i"}}, "master"),
        ({"masterConfig": {"imageUri": "i"}, "useChiefInTfConfig": True}, "chief"),
        ({"runtimeVersion": "1.15", "useChiefInTfConfig": True}, "master"),
    ],
    ids=str,
)
def test_first_replica_is_named_by_runtime(training_input: dict[str, Any], name: str) -> None:
    assert primary_name(training_input) == name


def test_tf_config_of_a_trial() -> None:
    made = tf_config(INPUT, {"master": ["h:1"]}, "master", 0, cloud="c", trial="2")

    assert made == {
        "cluster": {"chief": ["h:1"]},
        "task": {"type": "chief", "index": 0, "cloud": "c", "trial": "2"},
        "job": INPUT,
        "environment": "cloud",
    }


@pytest.mark.parametrize(
    ("role", "position", "kind"),
    [("master", 0, "chief"), ("worker", 1, "worker"), ("ps", 0, "ps")],
)
def test_every_replica_sees_the_same_cluster_and_its_own_task(
    role: str, position: int, kind: str
) -> None:
    made = tf_config(INPUT, ADDRESSES, role, position, cloud="c")

    assert made["cluster"] == {"chief": ["h:1"], "worker": ["h:2", "h:3"], "ps": ["h:4"]}
    assert made["task"] == {"type": kind, "index": position, "cloud": "c"}


def test_evaluator_knows_the_cluster_but_is_not_in_it() -> None:
    made = tf_config(INPUT, ADDRESSES, "evaluator", 0, cloud="c")

    assert "evaluator" not in made["cluster"]
    assert made["task"]["type"] == "evaluator"


def test_old_runtimes_say_master_in_cluster_and_task() -> None:
    made = tf_config(INPUT | {"runtimeVersion": "1.15"}, ADDRESSES, "master", 0, cloud="c")

    assert list(made["cluster"]) == ["master", "worker", "ps"]
    assert made["task"]["type"] == "master"


def test_cluster_spec_says_master_and_has_no_environment() -> None:
    container = {"masterConfig": {"imageUri": "i"}, "useChiefInTfConfig": True}

    assert cluster_spec(container, ADDRESSES, "worker", 1, trial="3") == {
        "cluster": {"master": ["h:1"], "worker": ["h:2", "h:3"], "ps": ["h:4"]},
        "task": {"type": "worker", "index": 1, "trial": "3"},
        "job": container,
    }
    assert cluster_spec(container, ADDRESSES, "master", 0)["task"] == {"type": "master", "index": 0}
