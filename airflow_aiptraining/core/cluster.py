"""The cluster of a job: its replicas, and what each is told about the others.

Sources: "Details of TF_CONFIG" and "Use CLUSTER_SPEC" of ML v1's documentation; its concepts page
for the roles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_aiptraining.core.machines import ROLE_FIELDS, Role, implied_scale_tier, machine_groups

_CHIEF_SINCE = (2, 1)
_OUTSIDE = "evaluator"
"""The role that isn't in ``cluster``: nobody is to wait for it."""


def replica_counts(training_input: Mapping[str, Any]) -> dict[Role, int]:
    """Return how many replicas of each role a job has: one master, and what its tier or counts say.

    :param training_input: a valid one; counts may be texts.
    """
    counts: dict[Role, int] = {group.role: group.count for group in machine_groups(training_input)}
    return counts or {"master": 1}


def replica_count(training_input: Mapping[str, Any]) -> int:
    """Return how many replicas a job has."""
    return sum(replica_counts(training_input).values())


def replicas(training_input: Mapping[str, Any]) -> Iterator[tuple[Role, int]]:
    """Give role and position of each replica, the master first."""
    for role, count in replica_counts(training_input).items():
        for position in range(count):
            yield role, position


def has_address(role: str) -> bool:
    """Tell whether replicas of a role are named in ``cluster``."""
    return role != _OUTSIDE


def count_field(training_input: Mapping[str, Any]) -> str:
    """Return the field that makes a job as large as it is: a count, or the tier."""
    if (training_input.get("scaleTier") or implied_scale_tier(training_input)) != "CUSTOM":
        return "scaleTier"
    counts = replica_counts(training_input)
    fields = {role: f"{field}Count" for role, field in ROLE_FIELDS if role != "master"}
    return max(fields.items(), key=lambda each: counts.get(each[0], 0))[1]


def primary_name(training_input: Mapping[str, Any]) -> str:
    """Return ``chief`` or ``master``: the name of the first replica in ``TF_CONFIG``.

    Runtime 2.1 and later say chief, older ones master; a custom container says master unless
    ``useChiefInTfConfig``.
    """
    if (training_input.get("masterConfig") or {}).get("imageUri"):
        return "chief" if training_input.get("useChiefInTfConfig") else "master"
    version = re.match(r"(\d+)\.(\d+)", str(training_input.get("runtimeVersion", "")))
    if version and (int(version[1]), int(version[2])) < _CHIEF_SINCE:
        return "master"
    return "chief"


def tf_config(
    training_input: Mapping[str, Any],
    addresses: Mapping[str, Sequence[str]],
    role: str,
    position: int,
    *,
    cloud: str,
    trial: str = "",
) -> dict[str, Any]:
    """Return ``TF_CONFIG`` of one replica.

    :param addresses: role (``master``, ``worker``, ``ps``) → ``host:port`` of its replicas, in
        order; an evaluator's are left out.
    :param role: this replica's role.
    :param cloud: opaque id of the job.
    :param trial: trial id of a tuning job, else empty.
    """
    names = {"master": primary_name(training_input)}
    return {
        "cluster": _cluster(addresses, names),
        "task": _task(names.get(role, role), position, trial) | {"cloud": cloud},
        "job": dict(training_input),
        "environment": "cloud",
    }


def cluster_spec(
    training_input: Mapping[str, Any],
    addresses: Mapping[str, Sequence[str]],
    role: str,
    position: int,
    *,
    trial: str = "",
) -> dict[str, Any]:
    """Return ``CLUSTER_SPEC`` of one replica, which jobs with custom containers have.

    The first replica is ``master`` here, whatever ``TF_CONFIG`` calls it.  Parameters as for
    :func:`tf_config`.
    """
    return {
        "cluster": _cluster(addresses, {}),
        "task": _task(role, position, trial),
        "job": dict(training_input),
    }


def _cluster(
    addresses: Mapping[str, Sequence[str]], names: Mapping[str, str]
) -> dict[str, list[str]]:
    return {
        names.get(role, role): list(hosts) for role, hosts in addresses.items() if has_address(role)
    }


def _task(kind: str, position: int, trial: str) -> dict[str, Any]:
    task: dict[str, Any] = {"type": kind, "index": position}
    return task | {"trial": trial} if trial else task
