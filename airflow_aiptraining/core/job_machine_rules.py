"""Rules of a job's machines: tier, types, counts, accelerators, images and disks of the roles.

Source: ML v1 discovery, revision 20251213, ``TrainingInput`` and ``ReplicaConfig``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_aiptraining.core import machines
from airflow_aiptraining.core.job_view import Problem, View

_DISK_TYPES = ("pd-ssd", "pd-standard")
_IMAGE = re.compile(r"[a-z0-9][^\s]*\Z", re.IGNORECASE)
_BUILT_IN_ALGORITHMS = re.compile(r"([a-z]+\.)?gcr\.io/cloud-ml-algos/")


def is_lost(view: View, field: str) -> bool:
    """True where nothing is known of a field because what holds it was no mapping, or misspelt.

    That is a problem told already.  Such a field counts as given, so that nobody calls it missing;
    nor must a rule say that it contradicts another.

    :param field: dotted for nested ones, as in :meth:`View.get`.
    """
    path = view.at(field)
    return view.get(field) is None and any(path.startswith(f"{each}.") for each in view.broken)


def machine_problems(training: View) -> Iterator[Problem]:
    """Yield the broken rules of a ``trainingInput``'s roles."""
    tier = _tier(training)
    if tier == "CUSTOM":
        yield from _custom_problems(training)
    elif tier is not None:
        yield from _predefined_problems(training, tier)
    for role, field in machines.ROLE_FIELDS:
        count = training.get(f"{field}Count")
        if role != "master" and count is not None and count < 0:
            yield Problem(training.at(f"{field}Count"), f"{count} machines can't be had")
        machine_type = training.get(f"{field}Type")
        if machine_type:
            try:
                machines.machine_kind(machine_type)
            except ValueError as error:
                yield Problem(training.at(f"{field}Type"), str(error))
        yield from _accelerator_problems(training, field, tier)
        yield from _container_problems(training, field)
        yield from _tpu_version_problems(training, field, tier)
        yield from _disk_problems(training.inside(f"{field}Config.diskConfig"))


def _tier(training: View) -> str | None:
    """Return the tier that holds, or ``None`` where it can't be known."""
    if training.given("scaleTier"):
        tier: str | None = training.get("scaleTier")
        return tier
    if any(training.given(field) for field in machines.CUSTOM_FIELDS):
        return "CUSTOM"
    return "BASIC" if training.complete else None


def _predefined_problems(training: View, tier: str) -> Iterator[Problem]:
    for field in machines.CUSTOM_FIELDS:
        value = training.get(field)
        if value:
            yield Problem(
                training.at(field),
                f"is {value!r}, but scaleTier is {tier}; machine types and counts are read only "
                f"with CUSTOM. Set scaleTier to CUSTOM and masterType, or remove {field}",
            )


def _custom_problems(training: View) -> Iterator[Problem]:
    if training.missing("masterType"):
        yield Problem(
            training.at("masterType"),
            "missing; scaleTier CUSTOM, which machine types and counts imply, needs it",
            cause=training.at("scaleTier"),
        )
    kinds: dict[str, str] = {}
    for role, field in machines.ROLE_FIELDS:
        type_field, count_field = f"{field}Type", f"{field}Count"
        kind = _kind(training, type_field)
        if kind in ("legacy", "compute_engine"):
            kinds[type_field] = kind
        if role == "master":
            continue
        # The API can't tell a count of 0 from none.
        count = training.get(count_field)
        counted = training.given(count_field) and count != 0
        if counted and training.missing(type_field):
            yield Problem(
                training.at(type_field),
                f"missing; {count_field} needs it",
                cause=training.at(count_field),
            )
        if training.complete and training.given(type_field) and not counted:
            yield Problem(
                training.at(count_field),
                f"missing or 0, but {type_field} is given; say how many machines, or remove it",
                cause=training.at(type_field),
            )
    if len(set(kinds.values())) > 1:
        first_field, first = next(iter(kinds.items()))
        for field, kind in kinds.items():
            if kind != first:
                yield Problem(
                    training.at(field),
                    f"{training.get(field)!r} is a {_KIND_NAMES[kind]} type and "
                    f"{first_field} {training.get(first_field)!r} a {_KIND_NAMES[first]} one; all "
                    "must be of one category",
                )


_KIND_NAMES = {"legacy": "legacy", "compute_engine": "Compute Engine"}


def _kind(training: View, type_field: str) -> str | None:
    machine_type = training.get(type_field)
    try:
        return machines.machine_kind(machine_type) if machine_type else None
    except ValueError:
        return None


def _accelerator_problems(training: View, field: str, tier: str | None) -> Iterator[Problem]:
    config_field = f"{field}Config.acceleratorConfig"
    config = training.inside(config_field)
    if not any(config.given(key) and not is_lost(config, key) for key in ("type", "count")):
        return
    for key, what in (("type", "which accelerator"), ("count", "how many on each machine")):
        if config.missing(key):
            yield Problem(config.at(key), f"missing; an acceleratorConfig says {what}")
    count, accelerator = config.get("count"), config.get("type")
    if count is not None and count < 1:
        yield Problem(config.at("count"), f"{count} is too small; 1 or more accelerators")
    if accelerator == "ACCELERATOR_TYPE_UNSPECIFIED":
        yield Problem(config.at("type"), "names no accelerator; choose one or remove the config")
    type_field = f"{field}Type"
    kind = _kind(training, type_field)
    where = training.at(config_field)
    cause = config.at("type")
    if tier is not None and tier != "CUSTOM":
        yield Problem(
            where,
            f"accelerators need scaleTier CUSTOM and {type_field}; scaleTier is {tier}",
            cause=cause,
        )
    elif kind == "legacy":
        yield Problem(
            where,
            f"accelerators need a Compute Engine type; {type_field} "
            f"{training.get(type_field)!r} is a legacy one. Write for example n1-standard-8",
            cause=cause,
        )
    elif kind == "cloud_tpu" and accelerator and not accelerator.startswith("TPU_"):
        yield Problem(
            config.at("type"), f"{accelerator} can't be attached to {type_field} 'cloud_tpu'"
        )
    elif training.missing(type_field) and type_field != "masterType":
        # A missing masterType is told by the rules of CUSTOM.
        yield Problem(where, f"accelerators need {type_field}, which is missing", cause=cause)


def _container_problems(training: View, field: str) -> Iterator[Problem]:
    config = training.inside(f"{field}Config")
    image = config.get("imageUri")
    if image and _BUILT_IN_ALGORITHMS.match(image):
        yield Problem(
            config.at("imageUri"),
            f"{image!r} is one of Google's built-in algorithms, which are not offered any more; "
            "bring a trainer package or an image of your own",
        )
    elif image and ("://" in image or not _IMAGE.match(image)):
        yield Problem(
            config.at("imageUri"),
            f"{image!r} is not an image's address; write it as registry/project/name:tag",
        )
    for key in ("containerCommand", "containerArgs"):
        if not config.given(key) or is_lost(config, key):
            continue
        if training.complete and not _has_image(training, field):
            yield Problem(
                config.at(key), "needs a custom container; set masterConfig.imageUri, or remove it"
            )
        if training.given("args"):
            yield Problem(
                config.at(key),
                "excludes trainingInput.args; put all arguments in one of them",
            )


def _has_image(training: View, field: str, *, surely: bool = False) -> bool:
    # Every role's image defaults to the master's.
    images = (f"{field}Config.imageUri", "masterConfig.imageUri")
    return any(
        training.given(image) and not (surely and is_lost(training, image)) for image in images
    )


def _tpu_version_problems(training: View, field: str, tier: str | None) -> Iterator[Problem]:
    config = training.inside(f"{field}Config")
    type_field = f"{field}Type"
    if tier is None or (tier == "CUSTOM" and _unknown(training, type_field)):
        return
    if is_lost(config, "tpuTfVersion"):
        return
    unsure = tier == "CUSTOM" and is_lost(config, "acceleratorConfig.type")
    is_tpu = (
        (tier == "BASIC_TPU" and field == "worker")
        if tier != "CUSTOM"
        else training.get(type_field) == machines.CLOUD_TPU
        or (config.get("acceleratorConfig.type") or "").startswith("TPU_")
    )
    if not config.given("tpuTfVersion"):
        if is_tpu and training.complete and _has_image(training, field, surely=True):
            yield Problem(
                config.at("tpuTfVersion"),
                "missing; a TPU with a custom container needs the runtime version whose "
                "TensorFlow the container has, such as '2.11'",
                cause=training.at(type_field),
            )
    elif not is_tpu and not unsure and training.complete:
        yield Problem(
            config.at("tpuTfVersion"),
            "is for TPUs only, and this role has none; remove it",
        )
    elif training.complete and not _has_image(training, field):
        yield Problem(
            config.at("tpuTfVersion"),
            "is for custom containers only; without one runtimeVersion decides. Remove it",
        )


def _unknown(training: View, field: str) -> bool:
    return training.given(field) and training.get(field) is None


def _disk_problems(disk: View) -> Iterator[Problem]:
    kind = disk.get("bootDiskType")
    if kind and kind not in _DISK_TYPES:
        yield Problem(
            disk.at("bootDiskType"), f"{kind!r} is not a boot disk; it is pd-ssd or pd-standard"
        )
    size = disk.get("bootDiskSizeGb")
    if size is not None and size < 1:
        yield Problem(disk.at("bootDiskSizeGb"), f"{size} GB is too small")
