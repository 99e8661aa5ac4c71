"""Which paths of ``trainingInput`` the params of a DAG run may set.

Whoever may trigger a DAG may write its params; that is often more people than those who may change
its code.  So the default list has what a training run needs and nothing that chooses which code
runs, as whom, or where it writes; an author names those one by one.

Light: a DAG file imports it while it is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

DEFAULT_OVERRIDABLE: tuple[str, ...] = (
    "args",
    "scaleTier",
    "region",
    "masterType",
    "masterConfig.acceleratorConfig",
    "workerType",
    "workerCount",
    "workerConfig.acceleratorConfig",
    "parameterServerType",
    "parameterServerCount",
    "parameterServerConfig.acceleratorConfig",
    "evaluatorType",
    "evaluatorCount",
    "evaluatorConfig.acceleratorConfig",
    "hyperparameters",
    "scheduling",
)
"""The default of ``overridable``: arguments, machines, tuning and scheduling."""

AUTHOR_ONLY: tuple[str, ...] = (
    "packageUris",
    "pythonModule",
    "imageUri",
    "containerCommand",
    "containerArgs",
    "serviceAccount",
    "network",
    "jobDir",
    "encryptionConfig",
    "enableWebAccess",
)
"""Fields, at any level, that choose code or identity: only a path that ends in one allows it."""

_SNAKE_KEY = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+")


def camel_case(key: str) -> str:
    """Return a ``snake_case`` key as the API's JSON spells it; any other key as it is."""
    if not _SNAKE_KEY.fullmatch(key):
        return key
    head, *rest = key.split("_")
    return head + "".join(part[0].upper() + part[1:] for part in rest)


def snake_case(path: str) -> str:
    """Return a path as one name: ``scheduling.maxWaitTime`` → ``scheduling_max_wait_time``."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", path).replace(".", "_").lower()


def normal_path(path: str) -> str:
    """Return an author's path in the form of :data:`DEFAULT_OVERRIDABLE`.

    :param path: relative to ``trainingInput``, or with it in front; camelCase or snake_case.
    """
    keys = [camel_case(key) for key in path.strip().split(".")]
    return ".".join(keys[1:] if keys[0] == "trainingInput" and len(keys) > 1 else keys)


def is_overridable(path: str, overridable: Iterable[str]) -> bool:
    """Return whether a run may set ``path``: it, or something that it lies under, is listed.

    ``"scheduling"`` allows all under it; ``"hyperparameters.maxTrials"`` only that.  What chooses
    code or identity (:data:`AUTHOR_ONLY`) isn't allowed by a path above it: ``"masterConfig"``
    allows ``masterConfig.acceleratorConfig``, and not ``masterConfig.imageUri``.

    :param path: relative to ``trainingInput``, e.g. ``hyperparameters.params[0].minValue``.
    """
    for listed in overridable:
        allowed = normal_path(listed)
        if path == allowed or path.startswith((f"{allowed}.", f"{allowed}[")):
            below = re.split(r"[.\[]", path[len(allowed) :])
            if not set(below) & set(AUTHOR_ONLY):
                return True
    return False
