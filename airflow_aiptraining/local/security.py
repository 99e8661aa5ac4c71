"""What may talk to the embedded service, which runs code by design.

It listens on loopback, but a web page in the user's browser reaches loopback too.  So: the Host
header must name this service (DNS rebinding), a browser's foreign Origin is refused, and endpoints
that take JSON take nothing else (a page can post text/plain anywhere without asking).  Bodies of
these endpoints are bounded; uploads are streamed to disk by their handlers.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airflow_aiptraining.local.errors import ApiError

MAX_JSON_BODY = 10 * 1024 * 1024
"""Bytes of a JSON request; more answers 413."""

_NOT_JSON = ("/upload/", "/resumable/upload/", "/batch/")
"""Prefixes whose handlers judge their own content type and bound their own bodies."""


class LocalOnly:
    """Middleware: refuse requests that no client of this service would send.

    :param app: the application.
    :param allowed_hosts: further Host names, ``name`` (any port) or ``name:port``, for a service
        that is reached by another name, as from a container.
    :param token: if set, every request must carry it as ``Authorization: Bearer``. The Host header
        may be anything then: a web page doesn't know the token, and containers have many names.
    :param token_free_port: port of a loopback listener where no token is asked: replicas reach
        storage there, as its client libraries can't send one to an emulator.
    """

    def __init__(
        self,
        app: ASGIApp,
        allowed_hosts: Collection[str] = (),
        token: str | None = None,
        token_free_port: int | None = None,
    ) -> None:
        self._app = app
        self._allowed_hosts = frozenset(host.lower() for host in allowed_hosts)
        self._token = token
        self._token_free_port = token_free_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer why not."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no websockets here
            return
        headers = Headers(scope=scope)
        try:
            self._check(scope, headers)
            bounded = _takes_json(scope) and _Bounded(receive)
            if bounded and int(headers.get("content-length") or 0) > MAX_JSON_BODY:
                raise _too_large()
        except ApiError as error:
            await JSONResponse(error.body(), error.status)(scope, receive, send)
            return
        await self._app(scope, bounded or receive, send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        host = headers.get("host", "").lower()
        token = self._token
        if token is not None and (scope.get("server") or ("", None))[1] == self._token_free_port:
            token = None
        if token is None and not self._is_ours(host, scope):
            raise _denied(
                f"Host {host!r} is not a name of this service. Use its loopback address, or "
                "start it with this host allowed"
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{scope['scheme']}://{host}":
            raise _denied(f"Requests from web pages are refused (Origin {origin!r})")
        if token is not None:
            given = headers.get("authorization", "")
            if not hmac.compare_digest(
                given.encode("utf-8", "replace"), f"Bearer {token}".encode()
            ):
                raise ApiError(
                    401,
                    "UNAUTHENTICATED",
                    "This service was started with a token file: send its content as "
                    "'Authorization: Bearer …'",
                )
        if not headers.get("content-length", "0").isdecimal():
            raise ApiError(400, "INVALID_ARGUMENT", "Content-Length must be a number")
        if _takes_json(scope) and _has_body(headers):
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json" and not kind.endswith("+json"):
                raise ApiError(
                    415,
                    "INVALID_ARGUMENT",
                    f"This endpoint takes Content-Type application/json, not {kind!r}",
                )

    def _is_ours(self, host: str, scope: Scope) -> bool:
        name, port = _split_host(host)
        if host in self._allowed_hosts or name in self._allowed_hosts:
            return True
        # A client that leaves the port out (TensorFlow's file system does) is no rebinding page.
        server = scope.get("server")
        return _is_loopback(name) and (port is None or server is None or port == server[1])


class _Bounded:
    """A receive channel that ends when a JSON body grows too large.

    Only chunked bodies get here with more than their Content-Length says.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._size = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            if self._size > MAX_JSON_BODY:
                raise _too_large()
        return message


def _takes_json(scope: Scope) -> bool:
    return not scope["path"].startswith(_NOT_JSON)


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or int(headers.get("content-length") or 0) > 0


def _too_large() -> ApiError:
    return ApiError(
        413, "INVALID_ARGUMENT", f"The request's body is larger than {MAX_JSON_BODY} bytes"
    )


def _denied(message: str) -> ApiError:
    return ApiError(403, "PERMISSION_DENIED", message)


def _split_host(host: str) -> tuple[str, int | None]:
    """Return name and port of a Host header; ``[::1]:80`` gives ``::1``; nonsense gives no name."""
    match = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([^:@/\[\]]+))(?::([0-9]{1,5}))?", host)
    if match is None:
        return "", None
    return match[1] or match[2], int(match[3]) if match[3] else None


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
