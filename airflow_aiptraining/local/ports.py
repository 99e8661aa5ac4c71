"""Loopback ports for replicas: free now, and given to no other job as long as theirs runs.

Nothing can hold a port for a trainer that is to listen on it itself, so they are taken from below
the range out of which the kernel picks ports for connections, and the jobs' addresses are kept in
the store.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

HOST = "127.0.0.1"
_LOWEST = 20_000
_KERNELS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 2_000


class NoFreePortError(Exception):
    """There aren't as many free ports as a job needs."""


class Ports:
    """Gives out ports.

    :param in_use: gives the ports that unfinished jobs have.
    """

    def __init__(self, in_use: Callable[[], Collection[int]]) -> None:
        self._in_use = in_use
        self._held: set[int] = set()

    @contextmanager
    def held(self, count: int) -> Iterator[list[int]]:
        """Give *count* free ports, which nobody else gets until the block ends.

        By then a job that goes on with them has told the store.

        :raises NoFreePortError: there are not so many.
        """
        ports = self._find(count)
        self._held.update(ports)
        try:
            yield ports
        finally:
            self._held.difference_update(ports)

    def _find(self, count: int) -> list[int]:
        taken = self._held | set(self._in_use())
        low, high = _range()
        found: list[int] = []
        # At random, so that two services on one machine rarely try the same.
        source = random.SystemRandom()
        for _ in range(_TRIES + 10 * count):
            if len(found) == count:
                return found
            port = source.randrange(low, high)
            if port not in taken and _is_free(port):
                taken.add(port)
                found.append(port)
        if len(found) == count:
            return found
        raise NoFreePortError(
            f"{count} free ports are needed on {HOST}, between {low} and {high - 1}; "
            f"{len(found)} were found."
        )


def _range() -> tuple[int, int]:
    try:
        kernels = int(_KERNELS.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        kernels = 32_768
    # A kernel that uses nearly all ports leaves no range below; its own is as good as any then.
    return (_LOWEST, kernels) if kernels >= _LOWEST + 2_000 else (_LOWEST, 60_000)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            # On all interfaces, as many trainers listen; it is closed again at once.
            probe.bind(("0.0.0.0", port))  # noqa: S104
        except OSError:
            return False
    return True
