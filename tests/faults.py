"""A proxy between a client and a service, which fails on request as networks and services fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

#: End a connection by RST instead of FIN.
_RESET = struct.pack("ii", 1, 0)
_HTML = b"<!doctype html><html><body><h1>502 Bad Gateway</h1></body></html>"


@dataclass(frozen=True)
class Fault:
    """What happens to one request.

    :param forward: it reaches the service, which does what is asked.
    :param delay: seconds before anything happens.
    :param reset: the connection is reset in place of an answer.
    :param silent: nothing is answered, and the connection stays open for so many seconds.
    :param status: of the answer in place of the service's.
    :param headers: of that answer.
    :param body: of that answer; ``None`` with ``forward`` for the service's own.
    :param cut: the answer ends in its middle.
    :param drip: seconds between two bytes of the body.
    """

    name: str
    forward: bool = False
    delay: float = 0.0
    reset: bool = False
    silent: float = 0.0
    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    cut: bool = False
    drip: float = 0.0

    def done_first(self) -> Fault:
        """Return the fault that comes after the service has done what was asked."""
        return replace(self, name=f"{self.name}, after it was done", forward=True)

    def __str__(self) -> str:
        return self.name


def error(status: int, name: str, *headers: tuple[str, str], as_status: int = 0) -> Fault:
    """Return an error as Google's APIs tell it.

    :param as_status: the HTTP status, where it isn't the error's own.
    """
    body = {"error": {"code": status, "message": f"It is {name}.", "status": name}}
    return Fault(
        f"{as_status or status} {name}",
        status=as_status or status,
        headers=headers,
        body=json.dumps(body).encode(),
    )


RESET = Fault("reset", reset=True)
SILENT = Fault("no answer", silent=30.0)
TOO_MANY = error(429, "RESOURCE_EXHAUSTED")
TOO_MANY_WAIT = error(429, "RESOURCE_EXHAUSTED", ("Retry-After", "0"))
INTERNAL = error(500, "INTERNAL")
UNAVAILABLE = error(503, "UNAVAILABLE")
ERROR_INSIDE = error(503, "UNAVAILABLE", as_status=200)
CODELESS_ERROR = Fault("200 with an error that has no code", status=200, body=b'{"error": {}}')
HTML_502 = Fault("HTML 502", status=502, headers=(("Content-Type", "text/html"),), body=_HTML)
HTML_404 = Fault("HTML 404", status=404, headers=(("Content-Type", "text/html"),), body=_HTML)
HTML_200 = Fault("HTML 200", status=200, headers=(("Content-Type", "text/html"),), body=_HTML)
EMPTY = Fault("200 with {}", status=200, body=b"{}")
NO_BODY = Fault("200 without a body", status=200, body=b"")
LIST = Fault("200 with a list", status=200, body=b"[]")
OTHER_JOB = Fault("another's answer", status=200, body=b'{"jobId": "another", "state": "FAILED"}')
TRUNCATED = Fault("truncated JSON", status=200, body=b'{"jobId": "a_b_c", "sta')
ODD_ENTRIES = Fault("entries that are none", status=200, body=b'{"entries": ["a line", 7]}')
PAGES = Fault("empty page after page", status=200, body=b'{"nextPageToken": "more"}', delay=0.02)
CUT = Fault("cut answer", forward=True, cut=True)
DRIP = Fault("slow drip", forward=True, drip=0.2)
WRONG_TYPE = Fault("wrong content type", forward=True, headers=(("Content-Type", "text/plain"),))
SLOW = Fault("delay", forward=True, delay=0.3)

#: Each leaves open whether the service did what was asked.
LOST_ANSWERS: tuple[Fault, ...] = (
    RESET,
    TOO_MANY,
    TOO_MANY_WAIT,
    INTERNAL,
    UNAVAILABLE,
    ERROR_INSIDE,
    CODELESS_ERROR,
    HTML_502,
    HTML_404,
    HTML_200,
    EMPTY,
    NO_BODY,
    LIST,
    OTHER_JOB,
    TRUNCATED,
)


@dataclass
class Seen:
    """One request that came to the proxy."""

    method: str
    path: str
    body: bytes
    fault: Fault | None


@dataclass
class _Rule:
    matches: Callable[[str, str], bool]
    faults: list[Fault]
    last_stays: bool


@dataclass
class FaultProxy:
    """A proxy on a free loopback port, in a thread of its own; use it in ``with``.

    :param upstream: URL of the service.
    """

    upstream: str
    seen: list[Seen] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        target = urlsplit(self.upstream)
        self._target = (str(target.hostname), int(target.port or 80))
        self._rules: list[_Rule] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        start = asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- the script ------------------------------------------------------------------------------

    def script(
        self, method: str, part: str, faults: Iterable[Fault], *, last_stays: bool = False
    ) -> None:
        """Give the next requests of a method, whose path has this part, these faults in turn.

        :param last_stays: all requests after them have the last one; else they pass.
        """
        matches = lambda is_method, path: is_method == method and part in path  # noqa: E731
        self._rules.append(_Rule(matches, list(faults), last_stays))

    def cut_off(self, fault: Fault = RESET) -> None:
        """Let everything fail like this until :meth:`restore`."""
        self._rules = [_Rule(lambda *_: True, [fault], True)]

    def restore(self) -> None:
        """Let everything pass."""
        self._rules = []

    def count(self, method: str, part: str = "") -> int:
        """Return how many requests of a method came for paths with this part."""
        return sum(seen.method == method and part in seen.path for seen in list(self.seen))

    def _next_fault(self, method: str, path: str) -> Fault | None:
        for rule in self._rules:
            if rule.faults and rule.matches(method, path):
                is_last = rule.last_stays and len(rule.faults) == 1
                return rule.faults[0] if is_last else rule.faults.pop(0)
        return None

    # -- the wire --------------------------------------------------------------------------------

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # Cancelled at the end, which asyncio.streams of Python 3.11 would log as an error.
            ends = (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError)
            with contextlib.suppress(*ends):
                while await self._one(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; return whether the connection can go on."""
        head = await reader.readuntil(b"\r\n\r\n")
        line, *headers = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, path, _ = line.split(" ", 2)
        body = await reader.readexactly(_content_length(headers))
        fault = self._next_fault(method, path)
        self.seen.append(Seen(method, path, body, fault))
        if fault is None:
            fault = Fault("", forward=True)
        await asyncio.sleep(fault.delay)
        answer = (200, [("Content-Type", "application/json")], b"")
        if fault.forward:
            answer = await self._forward(line, headers, body)
        if fault.silent:
            await asyncio.sleep(fault.silent)
        if fault.reset or fault.silent:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
            return False
        await self._answer(writer, fault, *answer)
        return not fault.cut

    async def _forward(
        self, line: str, headers: Sequence[str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        reader, writer = await asyncio.open_connection(*self._target)
        kept = [one for one in headers if one.split(":")[0].lower() not in ("host", "connection")]
        kept += [f"Host: {self._target[0]}:{self._target[1]}", "Connection: close"]
        writer.write("\r\n".join([line, *kept, "", ""]).encode("latin-1") + body)
        await writer.drain()
        head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        status, *lines = head.decode("latin-1").split("\r\n")
        names = ("content-type", "retry-after", "date")
        pairs = [(one.partition(":")[0], one.partition(":")[2].strip()) for one in lines]
        return int(status.split()[1]), [pair for pair in pairs if pair[0].lower() in names], answer

    async def _answer(
        self,
        writer: asyncio.StreamWriter,
        fault: Fault,
        status: int,
        headers: list[tuple[str, str]],
        body: bytes,
    ) -> None:
        if fault.body is not None:
            body = fault.body
        replaced = {name.lower() for name, _ in fault.headers}
        headers = [pair for pair in headers if pair[0].lower() not in replaced]
        headers += [*fault.headers, ("Content-Length", str(len(body)))]
        lines = [f"HTTP/1.1 {fault.status or status} Told", *(f"{n}: {v}" for n, v in headers)]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        if fault.cut:
            body = body[: len(body) // 2]
        if not fault.drip:
            writer.write(body)
        for byte in body if fault.drip else b"":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(fault.drip)
        await writer.drain()


def _content_length(headers: Sequence[str]) -> int:
    for header in headers:
        name, _, value = header.partition(":")
        if name.lower() == "content-length":
            return int(value)
    return 0
