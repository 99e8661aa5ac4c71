"""Batches: many small storage requests in one multipart/mixed body.

google-cloud-storage sends parts without Content-ID, gcsfs with; answers come in the order of the
requests.  Source: Cloud Storage documentation, "Batch requests".
"""

from __future__ import annotations

import secrets
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Message, Scope

from airflow_aiptraining.local.errors import bad_request
from airflow_aiptraining.local.multipart import MultipartError, boundary_of, parse_headers, split
from airflow_aiptraining.local.raw_routes import RawPathRoute

_MAX_BODY = 20 * 1024 * 1024
_MAX_CALLS = 1000  # google-cloud-storage's own bound; Google recommends 100


def routes() -> list[BaseRoute]:
    """Return the routes of batches."""
    return [RawPathRoute("/batch/storage/v1", _batch, methods=["POST"])]


async def _batch(request: Request) -> Response:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY:
            raise bad_request(f"A batch may have {_MAX_BODY} bytes")
    try:
        parts = split(bytes(body), boundary_of(request.headers.get("content-type", "")))
    except MultipartError as error:
        raise bad_request(f"The batch can't be read: {error}") from None
    if len(parts) > _MAX_CALLS:
        raise bad_request(f"A batch may have {_MAX_CALLS} calls, this one has {len(parts)}")
    boundary = f"batch_{secrets.token_hex(12)}"
    answer = bytearray()
    for headers, content in parts:
        identity = headers.get("content-id", "")
        answer += f"--{boundary}\r\nContent-Type: application/http\r\n".encode()
        if identity:
            name = identity.strip().strip("<>")
            answer += f"Content-ID: <response-{name}>\r\n".encode()
        answer += b"\r\n" + await _call(request, content) + b"\r\n"
    answer += f"--{boundary}--\r\n".encode()
    return Response(bytes(answer), media_type=f"multipart/mixed; boundary={boundary}")


async def _call(outer: Request, content: bytes) -> bytes:
    """Do one call of the batch and return its answer as HTTP text."""
    head, body = parse_headers(content, first_line=True)
    words = head.pop("").split()
    if len(words) < 2:
        raise bad_request("A part of the batch is no HTTP request")
    method, address = words[0].upper(), urlsplit(words[1])
    if not address.path.startswith("/storage/v1/") or "alt=media" in address.query:
        raise bad_request(f"{method} {address.path} can't be part of a batch")
    # A generator of MIME text ends a part with a line break that isn't the body's.
    body = body.rstrip(b"\r\n")
    head["host"] = outer.headers["host"]
    head["content-length"] = str(len(body))
    scope: Scope = {
        key: outer.scope[key]
        for key in ("type", "asgi", "http_version", "scheme", "client", "server", "app", "state")
        if key in outer.scope
    }
    scope.update(
        {
            "method": method,
            "path": address.path,
            "raw_path": address.path.encode(),
            "root_path": "",
            "query_string": address.query.encode(),
            "headers": [(key.encode("latin-1"), head[key].encode("latin-1")) for key in head],
        }
    )
    status, headers, answered = 500, [], bytearray()

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, headers, answered
        if message["type"] == "http.response.start":
            status, headers = message["status"], message["headers"]
        elif message["type"] == "http.response.body":
            answered += message.get("body", b"")

    # Through the whole application, so that every check of a single request holds here too.
    scope["headers"] += [
        (b"authorization", value.encode("latin-1"))
        for key, value in outer.headers.items()
        if key == "authorization" and "authorization" not in head
    ]
    await outer.app(scope, receive, send)
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
    lines += [key.title() + b": " + value for key, value in headers]
    return b"\r\n".join([*lines, b"", bytes(answered)])
