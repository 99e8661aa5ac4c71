"""Run the embedded training service as a process.

``aiptraining serve`` ends here.  When the service answers, it says so in one line of JSON on
stdout, and in a file if one is named::

    {"ml": "http://127.0.0.1:P", "logging": …, "storage": …, "pid": n}

It keeps its port over restarts, if nobody says which and the last one is free: replicas that
outlive a service find the next one where the last one was.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ipaddress
import json
import os
import signal
import socket
import sqlite3
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from airflow_aiptraining.exceptions import AIPTrainingError
from airflow_aiptraining.local.app import create_app
from airflow_aiptraining.local.job_checks import MAX_REPLICAS
from airflow_aiptraining.local.runtimes import Runtimes
from airflow_aiptraining.local.training import TrainingSettings

_GRACE_SECONDS = 3
# As Google's front ends do: httplib2 takes a connection that was closed while idle for a failure.
_KEEP_ALIVE_SECONDS = 620


class ServiceNotStartedError(AIPTrainingError):
    """The service can't run here; the text says why and what to do."""


def serve(
    data: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    ready_file: Path | None = None,
    token_file: Path | None = None,
    allowed_hosts: Collection[str] = (),
    capacity: int | None = None,
    max_replicas: int | None = None,
    stop_jobs: bool = False,
    runtimes: Path | None = None,
) -> None:
    """Run the service until SIGTERM or SIGINT.

    :param data: folder with everything that it keeps; made if missing.  One service at a time.
    :param host: address to listen on; another than loopback only with *token_file*.
    :param port: 0: the one that it had last time, or a free one.
    :param ready_file: where to write the ready line, besides stdout.
    :param token_file: file with a token that every request must carry.
    :param allowed_hosts: Host names accepted beside loopback ones.
    :param capacity: replicas that run at once; None: as many as there are processors, two at least.
    :param max_replicas: the most that one job may have; None: 32.
    :param stop_jobs: at the end cancel all jobs and wait; else replicas go on, and the next service
        on the same folder takes them up.
    :param runtimes: a table of runtime versions, laid over the package's own.
    :raises RuntimeTableError: the table can't be used.
    :raises ServiceNotStartedError: the folder has a service already or a database that can't be
        used, the port is taken, the host isn't loopback and there is no token.
    """
    token = _read_token(token_file) if token_file else None
    if token is None and not _is_loopback(host):
        raise ServiceNotStartedError(
            f"The service runs code for whoever reaches it, so it listens on {host} only with "
            "--token-file: a file with a secret that clients send as 'Authorization: Bearer …'."
        )
    table = Runtimes(runtimes)
    data.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_only_one(data))
        listener = stack.enter_context(_listen(host, port, data / "port"))
        listeners = [listener]
        if token is not None:
            # Replicas' storage clients can send no token; they are on this machine.
            inner = stack.enter_context(_listen("127.0.0.1", 0, data / "replica_port"))
            listeners.append(inner)
        url = _url(listener)
        try:
            app = create_app(
                data,
                allowed_hosts=allowed_hosts,
                token=token,
                token_free_port=_port(listeners[-1]) if token is not None else None,
                training=TrainingSettings(
                    service_url=_url(listeners[-1]),
                    capacity=capacity,
                    max_replicas=max_replicas or MAX_REPLICAS,
                    stop_jobs=stop_jobs,
                    runtimes=table,
                ),
            )
        except sqlite3.DatabaseError as error:
            raise _unusable_database(data, error) from error
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="on",
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        server = _Server(config, ready={"ml": url, "logging": url, "storage": url}, file=ready_file)
        asyncio.run(server.run_on(listeners))
        if not server.started:
            raise ServiceNotStartedError("The service could not start; its log says why.")


class _Server(uvicorn.Server):
    """uvicorn that says when it is ready, and ends with exit code 0 on SIGTERM and SIGINT."""

    def __init__(
        self, config: uvicorn.Config, *, ready: dict[str, str | int], file: Path | None
    ) -> None:
        super().__init__(config)
        self._ready = {**ready, "pid": os.getpid()}
        self._file = file

    async def run_on(self, listeners: list[socket.socket]) -> None:
        """Serve until a signal comes."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        await self.serve(sockets=listeners)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then tell."""
        await super().startup(sockets)
        if not self.started:
            return
        line = json.dumps(self._ready)
        if self._file:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._file.with_name(f".{self._file.name}.{os.getpid()}")
            temporary.write_text(line + "\n", encoding="utf-8")
            temporary.rename(self._file)
        # Whoever started the service may have closed the pipe by now.
        with contextlib.suppress(OSError):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to ``run_on``: uvicorn would raise them again at the end."""
        yield

    def _stop(self) -> None:
        self.should_exit = True


@contextmanager
def _only_one(data: Path) -> Iterator[None]:
    """Hold the folder's lock; the kernel lets go of it however the process ends.

    :raises ServiceNotStartedError: another process holds it.
    """
    with (data / "service.lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ServiceNotStartedError(
                f"The embedded service of {data} is running already, as process "
                f"{file.read().strip() or '?'}. Use that one, stop it, or choose another folder "
                "with --data."
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _unusable_database(data: Path, error: sqlite3.DatabaseError) -> ServiceNotStartedError:
    """Return what to tell about a database that can't be opened: which one, and the cure."""
    databases = {data / "jobs.sqlite": "jobs", data / "storage" / "objects.db": "objects"}
    # sqlite doesn't say which.
    bad = next((path for path in databases if not _is_usable(path)), None)
    if bad is None or isinstance(error, sqlite3.OperationalError):
        return ServiceNotStartedError(
            f"{bad or data}: the service's database can't be opened: {error}. See that the folder "
            "and its files can be written and that the disk has room, or choose another folder "
            "with --data."
        )
    return ServiceNotStartedError(
        f"{bad} is damaged, or no database of the service: {error}. Put a copy of it back; or move "
        f"it away, with {bad.name}-wal and {bad.name}-shm if they are there, and the service "
        f"starts without the {databases[bad]} it held; or choose another folder with --data."
    )


def _is_usable(path: Path) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
    except sqlite3.DatabaseError:
        return False
    return True


def _listen(host: str, port: int, remembered: Path) -> socket.socket:
    """Return a listening socket, and remember its port for the next start."""
    if not port:
        with contextlib.suppress(OSError, ValueError, OverflowError):
            return _bound(host, int(remembered.read_text(encoding="ascii")))
    try:
        listener = _bound(host, port)
    except OSError as error:
        raise ServiceNotStartedError(
            f"Can't listen on {host}:{port}: {error.strerror or error}. Choose another port, or "
            "leave --port out."
        ) from error
    remembered.write_text(str(listener.getsockname()[1]), encoding="ascii")
    return listener


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY; without, small answers wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(256)
    except OSError:
        listener.close()
        raise
    return listener


def _port(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def _url(listener: socket.socket) -> str:
    """Return the address at which this machine reaches a listener."""
    host = listener.getsockname()[0]
    if host in {"0.0.0.0", "::"}:  # noqa: S104
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return (
        f"http://[{host}]:{_port(listener)}" if ":" in host else f"http://{host}:{_port(listener)}"
    )


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ServiceNotStartedError(f"The token file can't be read: {error}.") from error
    if len(token) < 16:
        raise ServiceNotStartedError(
            f"The token in {path} has {len(token)} characters; give it 16 at least."
        )
    return token


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
