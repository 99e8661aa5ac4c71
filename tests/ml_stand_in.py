"""A server that answers ``jobs.get`` and ``jobs.list`` as the embedded service does, and can fail.

For faults that no real service makes on demand, and for jobs by the ten thousand.  Filters are read
by the embedded service's own grammar.

As a process (``python tests/ml_stand_in.py JOBS FIRST_END LAST_END``) it has so many jobs; they
end evenly between the two moments (epoch seconds), in an order of their own, and the last word it
prints is its port.
"""

from __future__ import annotations

import functools
import json
import random
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from airflow_aiptraining.local import filters

_END_STATES = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(frozen=True)
class Asked:
    """One request.

    :param verb: ``get``, ``list`` or ``cancel``.
    :param name: job id or filter.
    :param token: of the page; empty for the first.
    :param at: epoch seconds.
    :param peer: port of the connection that it came on.
    """

    verb: str
    name: str
    token: str
    at: float
    peer: int = 0


@dataclass(frozen=True)
class Reply:
    """One answer.

    :param body: JSON value, or bytes as they are.
    :param fault: ``reset`` the connection, ``truncate`` the body, ``drip`` it for an hour.
    """

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()
    fault: str = ""


def error(status: int, message: str, **headers: str) -> Reply:
    """Return an error as the API words it."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Reply(status, {"error": {"code": status, "message": message}}, named)


class StandIn:
    """The server, in threads of this process.

    :param states: jobs and their states, oldest first; may be changed at any time.
    """

    def __init__(self, states: dict[str, str] | None = None) -> None:
        self.states = states if states is not None else {}
        self.ends: dict[str, float] = {}
        self.asked: list[Asked] = []
        #: Asked first; ``None`` leaves the answer to the jobs.
        self.fault: Callable[[Asked], Reply | None] = lambda asked: None
        self._stopped = threading.Event()
        handler = type("Handler", (_Handler,), {"stand_in": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> StandIn:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def count(self, verb: str) -> int:
        """Return how often a verb was asked for."""
        return sum(asked.verb == verb for asked in self.asked)

    def state(self, job_id: str) -> str | None:
        """Return a job's state; ``None`` if there is no such job."""
        return self.states.get(job_id)

    def newest_first(self) -> Iterator[tuple[int, str]]:
        """Yield jobs with their numbers."""
        names = list(self.states)
        return zip(range(len(names) - 1, -1, -1), reversed(names), strict=True)

    def job(self, job_id: str, state: str) -> dict[str, Any]:
        """Return a Job resource."""
        job = {"jobId": job_id, "state": state, "createTime": "2026-01-01T00:00:00Z"}
        if state in _END_STATES:
            end = self.ends.setdefault(job_id, time.time())
            job["endTime"] = f"{datetime.fromtimestamp(end, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        return job

    def answer(self, asked: Asked, page_size: int) -> Reply:
        """Return what the service says."""
        if (reply := self.fault(asked)) is not None:
            return reply
        if asked.verb != "list":
            state = self.state(asked.name)
            if state is None:
                return error(
                    404, f"Field: name Error: The specified job {asked.name} was not found"
                )
            return Reply(body=self.job(asked.name, state) if asked.verb == "get" else {})
        found = list(islice(self._found(asked), page_size + 1))
        body: dict[str, Any] = {"jobs": [job for _, job in found[:page_size]]} if found else {}
        if len(found) > page_size:
            body["nextPageToken"] = str(found[page_size - 1][0])
        return Reply(body=body)

    def _found(self, asked: Asked) -> Iterator[tuple[int, dict[str, Any]]]:
        node = _parse(asked.name)
        wanted = filters.required_values(node, "state")
        before = int(asked.token) if asked.token else sys.maxsize
        for number, job_id in self.newest_first():
            if number >= before:
                continue
            state = self.state(job_id)
            if state is None or (wanted is not None and state not in wanted):
                continue
            job = self.job(job_id, state)
            if wanted is not None or filters.matches(node, job.get):
                yield number, job


@functools.lru_cache(100)
def _parse(text: str) -> filters.Node:
    return filters.parse(text)


class TimedStandIn(StandIn):
    """Jobs that end by the clock.

    :param jobs: how many; ``job_0``, ``job_1`` ...
    :param first_end: epoch seconds.
    :param last_end: epoch seconds.
    """

    def __init__(self, jobs: int, first_end: float, last_end: float) -> None:
        super().__init__({f"job_{number}": "RUNNING" for number in range(jobs)})
        self.ends = dict(ends(jobs, first_end, last_end))

    def state(self, job_id: str) -> str | None:
        """Return a job's state by the clock."""
        if job_id not in self.ends:
            return None
        return "SUCCEEDED" if time.time() >= self.ends[job_id] else "RUNNING"


def ends(jobs: int, first_end: float, last_end: float) -> list[tuple[str, float]]:
    """Return each job's end, shuffled: jobs don't end in the order in which they began."""
    order = list(range(jobs))
    random.Random(7).shuffle(order)
    step = (last_end - first_end) / max(1, jobs - 1)
    return [(f"job_{number}", first_end + place * step) for place, number in enumerate(order)]


class _Handler(BaseHTTPRequestHandler):
    stand_in: StandIn
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._do()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._do()

    def _do(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        found = re.fullmatch(r"/v1/projects/[^/]+/jobs(?:/([^/:]+)(:cancel)?)?", unquote(url.path))
        if found is None:
            self._send(error(404, f"no method at {url.path}"))
            return
        job_id, is_cancel = found.groups()
        verb = "cancel" if is_cancel else "get" if job_id else "list"
        name = job_id or query.get("filter", "")
        token = query.get("pageToken", "")
        asked = Asked(verb, name, token, time.time(), self.client_address[1])
        self.stand_in.asked.append(asked)
        self._send(self.stand_in.answer(asked, int(query.get("pageSize", 20))))

    def _send(self, reply: Reply) -> None:
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        if reply.fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        self.send_response(reply.status)
        headers = dict(reply.headers)
        headers.setdefault("Content-Type", "application/json")
        headers["Content-Length"] = str(len(body) + (50 if reply.fault == "truncate" else 0))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if reply.fault == "drip":
            for at in range(len(body)):
                self.wfile.write(body[at : at + 1])
                self.wfile.flush()
                if self.stand_in._stopped.wait(0.1):
                    break
            self.close_connection = True
            return
        self.wfile.write(body)
        self.close_connection = bool(reply.fault)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


if __name__ == "__main__":
    with TimedStandIn(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])) as running:
        print(running.url, flush=True)
        # One line in: how many requests so far; end of input: stop.
        for _ in sys.stdin:
            print(json.dumps([[asked.verb, asked.at] for asked in running.asked]), flush=True)
