"""What a signal handler leaves for the loop that it interrupted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class KillSignal:
    """Whether Airflow has told this process to end.

    A plain flag: a handler that runs while the loop holds a lock would wait for it for ever.
    """

    was_received: bool = False
