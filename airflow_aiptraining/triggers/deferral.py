"""Whether a task waits in the triggerer."""

from __future__ import annotations

from airflow.sdk.configuration import conf


def is_deferrable(asked: bool | None) -> bool:
    """Return what the author asked for; else Airflow's ``[operators] default_deferrable``."""
    if asked is not None:
        return asked
    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))
