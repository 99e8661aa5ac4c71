"""Whether a task waits in the triggerer, and for how long at least."""

from __future__ import annotations

from airflow.sdk.configuration import conf

#: Seconds.  Airflow notes the end of a leg some time after it; a trigger that has fired by then can
#: make it call the task's ``execute`` again, or fail a task that has no retries.  Measured on 3.3.
SHORTEST_DEFERRAL = 3.0


def is_deferrable(asked: bool | None) -> bool:
    """Return what the author asked for; else Airflow's ``[operators] default_deferrable``."""
    if asked is not None:
        return asked
    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))
