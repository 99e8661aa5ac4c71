"""Scale tiers, machine types and accelerators: what a job runs on, and what that costs.

Light: the standard library only, so that arguments can be normalised where a DAG is parsed.

Sources: names from ML v1 discovery, revision 20251213; clusters of the tiers and prices from
https://cloud.google.com/ml-engine/docs/pricing (Americas).  The page's 25 prices all follow from
the few rates below, which is why they are computed here and not listed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from airflow_aiptraining.core.spelling import enum_value, nearest_word

SCALE_TIERS = ("BASIC", "STANDARD_1", "PREMIUM_1", "BASIC_GPU", "BASIC_TPU", "CUSTOM")
ACCELERATOR_TYPES = (
    "ACCELERATOR_TYPE_UNSPECIFIED",
    "NVIDIA_TESLA_K80",
    "NVIDIA_TESLA_P100",
    "NVIDIA_TESLA_V100",
    "NVIDIA_TESLA_P4",
    "NVIDIA_TESLA_T4",
    "NVIDIA_TESLA_A100",
    "TPU_V2",
    "TPU_V3",
    "TPU_V2_POD",
    "TPU_V3_POD",
    "TPU_V4_POD",
)

#: USD for one ML unit and hour in the Americas, the unit's definition.
USD_PER_UNIT = 0.49
_USD_PER_VCPU_HOUR = {"standard": 0.0475, "highmem": 0.0592, "highcpu": 0.03545}
#: T4, P4, A100 and TPU v3 are missing: their prices aren't known, and nothing is guessed.
_USD_PER_ACCELERATOR_HOUR = {
    "NVIDIA_TESLA_K80": 0.45,
    "NVIDIA_TESLA_P100": 1.46,
    "NVIDIA_TESLA_V100": 2.48,
}
_USD_PER_TPU_V2_8_HOUR = 4.50
_TPU_V2_8_CORES = 8

_N1_VCPUS = {
    "standard": (4, 8, 16, 32, 64, 96),
    "highmem": (2, 4, 8, 16, 32, 64, 96),
    "highcpu": (16, 32, 64, 96),
}
#: The n1 types that the API takes directly.
N1_MACHINE_TYPES = tuple(
    f"n1-{kind}-{vcpus}" for kind, sizes in _N1_VCPUS.items() for vcpus in sizes
)
CLOUD_TPU = "cloud_tpu"

Role = Literal["master", "worker", "ps", "evaluator"]
MachineKind = Literal["compute_engine", "legacy", "cloud_tpu"]


@dataclass(frozen=True)
class LegacyMachine:
    """What one of ML v1's own machine types is on Compute Engine.

    :param machine_type: the Compute Engine type.
    :param accelerator_type: empty where it has none.
    :param accelerator_count: GPUs on each machine.
    """

    machine_type: str
    accelerator_type: str = ""
    accelerator_count: int = 0


_K80, _P100, _V100 = "NVIDIA_TESLA_K80", "NVIDIA_TESLA_P100", "NVIDIA_TESLA_V100"
#: ``cloud_tpu`` isn't among them: it is no machine of its own, and goes with either category.
LEGACY_MACHINES: Mapping[str, LegacyMachine] = {
    "standard": LegacyMachine("n1-standard-4"),
    "large_model": LegacyMachine("n1-highmem-8"),
    "complex_model_s": LegacyMachine("n1-highcpu-8"),
    "complex_model_m": LegacyMachine("n1-highcpu-16"),
    "complex_model_l": LegacyMachine("n1-highcpu-32"),
    "standard_gpu": LegacyMachine("n1-standard-8", _K80, 1),
    "complex_model_m_gpu": LegacyMachine("n1-standard-16", _K80, 4),
    "complex_model_l_gpu": LegacyMachine("n1-standard-32", _K80, 8),
    "standard_p100": LegacyMachine("n1-standard-8", _P100, 1),
    "complex_model_m_p100": LegacyMachine("n1-standard-16", _P100, 4),
    "standard_v100": LegacyMachine("n1-standard-8", _V100, 1),
    "large_model_v100": LegacyMachine("n1-highmem-8", _V100, 1),
    "complex_model_m_v100": LegacyMachine("n1-standard-16", _V100, 4),
    "complex_model_l_v100": LegacyMachine("n1-standard-32", _V100, 8),
}


@dataclass(frozen=True)
class MachineGroup:
    """The equal machines of one role.

    :param role: as in replica names: ``master``, ``worker``, ``ps``, ``evaluator``.
    :param count: machines, at least 1.
    :param machine_type: as the job names it: Compute Engine, legacy or ``cloud_tpu``.
    :param accelerator_type: the API's name; empty where the job asks for none (a legacy type may
        still have GPUs of its own).
    :param accelerator_count: accelerators on each machine.
    """

    role: Role
    count: int
    machine_type: str
    accelerator_type: str = ""
    accelerator_count: int = 0


#: Source of "1 master + N workers": Google's documentation of the tiers; the totals (5 and 20
#: equal machines beside 3 and 11 parameter servers) are confirmed by the price list.
TIER_CLUSTERS: Mapping[str, tuple[MachineGroup, ...]] = {
    "BASIC": (MachineGroup("master", 1, "n1-standard-4"),),
    "STANDARD_1": (
        MachineGroup("master", 1, "n1-highcpu-8"),
        MachineGroup("worker", 4, "n1-highcpu-8"),
        MachineGroup("ps", 3, "n1-standard-4"),
    ),
    "PREMIUM_1": (
        MachineGroup("master", 1, "n1-highcpu-16"),
        MachineGroup("worker", 19, "n1-highcpu-16"),
        MachineGroup("ps", 11, "n1-highmem-8"),
    ),
    "BASIC_GPU": (MachineGroup("master", 1, "n1-standard-8", _K80, 1),),
    "BASIC_TPU": (
        MachineGroup("master", 1, "n1-standard-4"),
        MachineGroup("worker", 1, CLOUD_TPU, "TPU_V2", _TPU_V2_8_CORES),
    ),
}

#: role, and what its fields in TrainingInput begin with.
ROLE_FIELDS: tuple[tuple[Role, str], ...] = (
    ("master", "master"),
    ("worker", "worker"),
    ("ps", "parameterServer"),
    ("evaluator", "evaluator"),
)
#: The fields that say what a CUSTOM cluster is made of.
CUSTOM_FIELDS = (
    "masterType",
    "workerType",
    "workerCount",
    "parameterServerType",
    "parameterServerCount",
    "evaluatorType",
    "evaluatorCount",
)


class PriceEstimate(TypedDict):
    """What some machine time costs, and how sure that is.

    ``usd``: US dollars, rounded to cents. ``note``: what the figure rests on and leaves out.
    """

    usd: float
    note: str


PRICE_NOTE = (
    f"Estimate at {USD_PER_UNIT} USD per ML unit and hour, the price in the Americas; other "
    "regions cost more. Boot disks, storage and network are not in it."
)


def scale_tier(spelling: str) -> str:
    """Return the API's name of a scale tier.

    :param spelling: the API's (``STANDARD_1``) or gcloud's (``standard-1``), in any case.
    :raises ValueError: there is no such tier; the text names the nearest.
    """
    return enum_value(spelling, SCALE_TIERS)


def accelerator_type(spelling: str) -> str:
    """Return the API's name of an accelerator.

    :param spelling: the API's (``NVIDIA_TESLA_T4``) or gcloud's (``nvidia-tesla-t4``).
    :raises ValueError: there is no such accelerator; the text names the nearest.
    """
    return enum_value(spelling, ACCELERATOR_TYPES)


def machine_kind(machine_type: str) -> MachineKind:
    """Return the category of a machine type; all roles of a job must be of one.

    ``cloud_tpu`` is of neither: it goes with both.

    :raises ValueError: no machine can have this name; the text names the nearest.  Families other
        than n1 are let through: Vertex AI has them, and new ones come.
    """
    if machine_type == CLOUD_TPU:
        return "cloud_tpu"
    if machine_type in LEGACY_MACHINES:
        return "legacy"
    if _COMPUTE_ENGINE_FORM.match(machine_type) and (
        not machine_type.startswith("n1-") or machine_type in N1_MACHINE_TYPES
    ):
        return "compute_engine"
    nearest = nearest_word(machine_type, (*N1_MACHINE_TYPES, *LEGACY_MACHINES, CLOUD_TPU))
    advice = (
        f"did you mean {nearest!r}?"
        if nearest
        else "write a Compute Engine type such as 'n1-standard-8', or one of "
        + ", ".join((*LEGACY_MACHINES, CLOUD_TPU))
    )
    raise ValueError(f"{machine_type!r} is not a machine type; {advice}")


_COMPUTE_ENGINE_FORM = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+\Z")


def implied_scale_tier(training_input: Mapping[str, Any]) -> str | None:
    """Return the tier that a training input means without saying it.

    :return: ``CUSTOM`` where machine types or counts are given and no ``scaleTier`` is; ``None``
        where the tier is said, or nothing implies one (the service takes ``BASIC``).
    """
    if training_input.get("scaleTier"):
        return None
    return "CUSTOM" if any(training_input.get(field) for field in CUSTOM_FIELDS) else None


def machine_groups(training_input: Mapping[str, Any]) -> tuple[MachineGroup, ...]:
    """Return the machines that a job runs on, the master's first.

    :param training_input: as a service answers it, or checked; counts may be texts.
    :return: one group for each role with machines; empty where the input names no master or makes
        no sense.
    """
    tier = training_input.get("scaleTier") or implied_scale_tier(training_input) or "BASIC"
    if tier != "CUSTOM":
        return TIER_CLUSTERS.get(tier, ())
    groups = []
    for role, field in ROLE_FIELDS:
        count = 1 if role == "master" else _count(training_input.get(f"{field}Count"))
        machine_type = training_input.get(f"{field}Type") or ""
        if count is None or (count and not machine_type):
            return ()
        if not count:
            continue
        config = (training_input.get(f"{field}Config") or {}).get("acceleratorConfig") or {}
        accelerators = _count(config.get("count"))
        if accelerators is None:
            return ()
        kind = config.get("type", "") if accelerators else ""
        groups.append(MachineGroup(role, count, machine_type, kind, accelerators))
    return tuple(groups)


def ml_units_per_hour(training_input: Mapping[str, Any]) -> float | None:
    """Return the ML units that a job's machines consume in an hour.

    :param training_input: as a service answers it, or checked.
    :return: unrounded; ``None`` where one machine's or accelerator's price isn't known.
    """
    groups = machine_groups(training_input)
    usd = [_usd_per_hour(group) for group in groups]
    if not usd or None in usd:
        return None
    return sum(value for value in usd if value is not None) / USD_PER_UNIT


def consumed_ml_units(training_input: Mapping[str, Any], seconds: float) -> float | None:
    """Return the ML units consumed, as ``trainingOutput.consumedMLUnits`` has them: two decimals.

    :param seconds: how long the machines ran: endTime - startTime; for a tuning job the sum over
        its trials.
    :return: ``None`` where a machine's price isn't known.
    """
    units = ml_units_per_hour(training_input)
    if units is None:
        return None
    # The service cuts further decimals off (n1-highmem-16 for 57m36s: 1.8557, reported 1.85); the
    # rounding before keeps binary fractions from losing a whole hundredth.
    return math.floor(round(units * seconds / 36, 6)) / 100


def price_estimate(training_input: Mapping[str, Any], seconds: float) -> PriceEstimate | None:
    """Return what the machines of a job cost for a time.

    :param seconds: see :func:`consumed_ml_units`.
    :return: ``None`` where a machine's price isn't known: no figure is better than a wrong one.
    """
    units = ml_units_per_hour(training_input)
    if units is None:
        return None
    return {"usd": round(units * seconds / 3600 * USD_PER_UNIT, 2), "note": PRICE_NOTE}


def _count(value: Any) -> int | None:
    """Return a count as the API may write it, 0 where it is missing, ``None`` where it is none."""
    try:
        count = int(value or 0)
    except (TypeError, ValueError):
        return None
    return count if count >= 0 else None


def _usd_per_hour(group: MachineGroup) -> float | None:
    if group.machine_type == CLOUD_TPU:
        # A cloud_tpu that says nothing more is a TPU v2-8.
        kind = group.accelerator_type or "TPU_V2"
        cores = group.accelerator_count or _TPU_V2_8_CORES
        if kind != "TPU_V2" or cores != _TPU_V2_8_CORES:
            return None
        return group.count * _USD_PER_TPU_V2_8_HOUR
    legacy = LEGACY_MACHINES.get(group.machine_type, LegacyMachine(group.machine_type))
    usd = _machine_usd_per_hour(legacy.machine_type)
    for accelerator, count in (
        (legacy.accelerator_type, legacy.accelerator_count),
        (group.accelerator_type, group.accelerator_count),
    ):
        if count:
            each = _USD_PER_ACCELERATOR_HOUR.get(accelerator)
            if usd is None or each is None:
                return None
            usd += count * each
    return None if usd is None else group.count * usd


def _machine_usd_per_hour(machine_type: str) -> float | None:
    family, _, rest = machine_type.partition("-")
    kind, _, vcpus = rest.partition("-")
    if family != "n1" or kind not in _USD_PER_VCPU_HOUR or not vcpus.isdecimal():
        return None
    return int(vcpus) * _USD_PER_VCPU_HOUR[kind]
