from __future__ import annotations

from typing import Any

import pytest

from airflow_aiptraining.core import machines
from airflow_aiptraining.core.machines import (
    accelerator_type,
    consumed_ml_units,
    implied_scale_tier,
    machine_groups,
    machine_kind,
    ml_units_per_hour,
    price_estimate,
    scale_tier,
)


@pytest.mark.parametrize(
    ("spelling", "tier"),
    [
        ("BASIC", "BASIC"),
        ("basic", "BASIC"),
        ("standard-1", "STANDARD_1"),
        ("Standard_1", "STANDARD_1"),
        ("premium-1", "PREMIUM_1"),
        ("basic-gpu", "BASIC_GPU"),
        ("basic-tpu", "BASIC_TPU"),
        (" custom ", "CUSTOM"),
    ],
)
def test_scale_tier_is_read_in_either_spelling(spelling: str, tier: str) -> None:
    assert scale_tier(spelling) == tier


@pytest.mark.parametrize(
    ("spelling", "accelerator"),
    [
        ("nvidia-tesla-t4", "NVIDIA_TESLA_T4"),
        ("NVIDIA_TESLA_A100", "NVIDIA_TESLA_A100"),
        ("tpu-v3-pod", "TPU_V3_POD"),
    ],
)
def test_accelerator_type_is_read_in_either_spelling(spelling: str, accelerator: str) -> None:
    assert accelerator_type(spelling) == accelerator


def test_an_unknown_tier_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'STANDARD_1'"):
        scale_tier("standart-1")


def test_a_word_far_from_all_tiers_is_answered_with_the_list() -> None:
    with pytest.raises(ValueError, match=r"BASIC, STANDARD_1, .*CUSTOM"):
        scale_tier("xyzzy")


#: Source: https://cloud.google.com/ml-engine/docs/pricing, Americas.
TIER_UNITS = {
    "BASIC": 0.3878,
    "STANDARD_1": 4.0571,
    "PREMIUM_1": 33.7829,
    "BASIC_GPU": 1.6939,
    "BASIC_TPU": 9.5714,
}
MACHINE_UNITS = {
    "standard": 0.3878,
    "large_model": 0.9665,
    "complex_model_s": 0.5788,
    "complex_model_m": 1.1576,
    "complex_model_l": 2.3151,
    "standard_gpu": 1.6939,
    "n1-standard-4": 0.3878,
    "n1-standard-8": 0.7755,
    "n1-standard-16": 1.5510,
    "n1-standard-32": 3.1020,
    "n1-standard-64": 6.2041,
    "n1-standard-96": 9.3061,
    "n1-highmem-2": 0.2416,
    "n1-highcpu-32": 2.3151,
}
MACHINE_USD = {
    "complex_model_m_gpu": 2.56,
    "complex_model_l_gpu": 5.12,
    "standard_p100": 1.84,
    "complex_model_m_p100": 6.60,
    "standard_v100": 2.86,
    "large_model_v100": 2.9536,
    "complex_model_m_v100": 10.68,
    "complex_model_l_v100": 21.36,
    "cloud_tpu": 4.50,
}


def custom(master: str, **fields: Any) -> dict[str, Any]:
    return {"scaleTier": "CUSTOM", "masterType": master, **fields}


@pytest.mark.parametrize(("tier", "units"), TIER_UNITS.items())
def test_units_of_a_tier_are_those_of_the_price_list(tier: str, units: float) -> None:
    assert ml_units_per_hour({"scaleTier": tier}) == pytest.approx(units, abs=5.1e-5)


@pytest.mark.parametrize(("machine", "units"), MACHINE_UNITS.items())
def test_units_of_a_machine_are_those_of_the_price_list(machine: str, units: float) -> None:
    assert ml_units_per_hour(custom(machine)) == pytest.approx(units, abs=1.01e-4)


@pytest.mark.parametrize(("machine", "usd"), MACHINE_USD.items())
def test_price_of_a_machine_is_that_of_the_price_list(machine: str, usd: float) -> None:
    units = ml_units_per_hour(custom(machine))

    assert units is not None
    assert units * machines.USD_PER_UNIT == pytest.approx(usd)


def test_every_legacy_machine_and_every_fixed_tier_has_a_price() -> None:
    assert set(machines.LEGACY_MACHINES) <= set(MACHINE_UNITS) | set(MACHINE_USD)
    assert set(machines.TIER_CLUSTERS) == set(TIER_UNITS) == set(machines.SCALE_TIERS) - {"CUSTOM"}


def test_units_of_a_custom_cluster_are_the_sum_of_its_roles() -> None:
    job = custom(
        "complex_model_m",
        workerType="complex_model_m",
        workerCount="9",
        parameterServerType="large_model",
        parameterServerCount=3,
    )

    assert ml_units_per_hour(job) == pytest.approx(10 * 1.15755 + 3 * 0.96653, abs=1e-3)


def test_accelerators_of_a_custom_cluster_are_priced_on_each_machine() -> None:
    job = custom(
        "n1-standard-4",
        workerType="n1-standard-8",
        workerCount="2",
        workerConfig={"acceleratorConfig": {"type": "NVIDIA_TESLA_P100", "count": "4"}},
    )

    units = ml_units_per_hour(job)

    assert units is not None
    assert units * machines.USD_PER_UNIT == pytest.approx(0.19 + 2 * (0.38 + 4 * 1.46))


@pytest.mark.parametrize(
    "job",
    [
        custom("n2-standard-8"),
        custom("a2-highgpu-1g"),
        custom("n1-standard-8", workerCount="2"),
        custom("n1-standard-8", workerCount="many", workerType="standard"),
        custom(
            "n1-standard-8",
            masterConfig={"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": 1}},
        ),
        custom("cloud_tpu", masterConfig={"acceleratorConfig": {"type": "TPU_V3", "count": 8}}),
        {"scaleTier": "CUSTOM"},
        {"scaleTier": "HUGE"},
    ],
    ids=["n2", "a2", "no worker type", "no number", "T4", "TPU v3", "no master", "unknown tier"],
)
def test_no_price_is_guessed(job: dict[str, Any]) -> None:
    assert ml_units_per_hour(job) is None
    assert consumed_ml_units(job, 3600) is None
    assert price_estimate(job, 3600) is None


def test_consumed_units_match_a_real_job() -> None:
    """n1-highmem-16 for 57m36s: 1.8557 units, of which the service reported 1.85."""
    assert consumed_ml_units(custom("n1-highmem-16"), 57 * 60 + 36) == 1.85


def test_whole_hundredths_of_a_unit_are_not_lost() -> None:
    assert consumed_ml_units(custom("cloud_tpu"), 3600 * 0.29 * 0.49 / 4.5) == 0.29


def test_price_estimate_says_what_it_leaves_out() -> None:
    estimate = price_estimate({"scaleTier": "BASIC"}, 2 * 3600)

    assert estimate is not None
    assert estimate["usd"] == 0.38
    assert "Americas" in estimate["note"]
    assert "disks" in estimate["note"]


def test_a_job_without_tier_is_basic() -> None:
    assert ml_units_per_hour({}) == ml_units_per_hour({"scaleTier": "BASIC"})


@pytest.mark.parametrize(
    ("job", "implied"),
    [
        ({}, None),
        ({"masterType": "standard"}, "CUSTOM"),
        ({"workerCount": 2}, "CUSTOM"),
        ({"workerCount": 0}, None),
        ({"scaleTier": "BASIC", "masterType": "standard"}, None),
        ({"masterConfig": {"imageUri": "gcr.io/p/i"}}, None),
    ],
    ids=str,
)
def test_machine_types_or_counts_imply_custom(job: dict[str, Any], implied: str | None) -> None:
    assert implied_scale_tier(job) == implied


def test_standard_1_has_one_master_four_workers_three_parameter_servers() -> None:
    groups = machine_groups({"scaleTier": "STANDARD_1"})

    assert [(group.role, group.count) for group in groups] == [
        ("master", 1),
        ("worker", 4),
        ("ps", 3),
    ]


def test_groups_of_a_custom_job_are_read_as_the_service_writes_them() -> None:
    groups = machine_groups(
        custom(
            "n1-standard-8",
            masterConfig={"acceleratorConfig": {"type": "NVIDIA_TESLA_K80", "count": "2"}},
            workerCount="0",
            evaluatorType="standard",
            evaluatorCount="1",
        )
    )

    assert groups == (
        machines.MachineGroup("master", 1, "n1-standard-8", "NVIDIA_TESLA_K80", 2),
        machines.MachineGroup("evaluator", 1, "standard"),
    )


@pytest.mark.parametrize(
    ("machine_type", "kind"),
    [
        ("n1-standard-4", "compute_engine"),
        ("a2-highgpu-1g", "compute_engine"),
        ("c3d-standard-8", "compute_engine"),
        ("complex_model_l_v100", "legacy"),
        ("cloud_tpu", "cloud_tpu"),
    ],
)
def test_machine_kind_tells_the_category(machine_type: str, kind: str) -> None:
    assert machine_kind(machine_type) == kind


@pytest.mark.parametrize(
    ("machine_type", "advice"),
    [
        ("n1-standrd-4", "n1-standard-4"),
        ("n1-standard-5", "n1-standard-"),
        ("complex_model_xl", "complex_model_l"),
        ("N1-STANDARD-8", "n1-standard-8"),
        ("huge", "write a Compute Engine type"),
    ],
)
def test_a_machine_type_that_cannot_be_is_answered_with_advice(
    machine_type: str, advice: str
) -> None:
    with pytest.raises(ValueError, match=advice):
        machine_kind(machine_type)
