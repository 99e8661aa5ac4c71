"""The operator's arguments and the fields that they set."""

from __future__ import annotations

import inspect

import pytest

from airflow_aiptraining.operators.job_arguments import FIELD_OF, argument_layers, unread_names
from airflow_aiptraining.operators.training_job import AIPTrainingJobOperator


def test_every_argument_of_the_table_is_the_operators_and_templated() -> None:
    arguments = set(inspect.signature(AIPTrainingJobOperator.__init__).parameters)

    assert set(FIELD_OF) <= arguments
    assert set(FIELD_OF) <= set(AIPTrainingJobOperator.template_fields)


def test_each_given_argument_is_a_layer_that_names_it() -> None:
    given = {"scale_tier": "basic", "worker_count": None, "region": "", "kms_key": "k"}

    assert [(layer.name, layer.values) for layer in argument_layers(given)] == [
        ("argument scale_tier", {"trainingInput": {"scaleTier": "basic"}}),
        ("argument kms_key", {"trainingInput": {"encryptionConfig": {"kmsKeyName": "k"}}}),
    ]


@pytest.mark.parametrize(
    ("conf", "unread"),
    [
        ({"scaleTier": "CUSTOM", "note": "x"}, ["scaleTier"]),
        ({"scale_tier": "basic"}, ["scale_tier"]),
        ({"training_input": {}, "masterType": "x"}, ["masterType"]),
        ({}, []),
    ],
)
def test_conf_that_looks_like_a_field_and_is_not_read_is_told(
    conf: dict[str, object], unread: list[str]
) -> None:
    assert unread_names(conf, {"training_input"}) == unread
