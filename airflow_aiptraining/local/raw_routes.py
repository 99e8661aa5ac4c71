"""Routes that are matched before percent-decoding.

A server decodes the path, so ``/o/a%2FcopyTo%2Fb/b/x`` would look like another address.  Names of
objects hold anything; matched on the raw path, one name is one segment, whatever is in it.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from starlette.routing import Match, Route
from starlette.types import Scope

from airflow_aiptraining.local.errors import bad_request


class RawPathRoute(Route):
    """A route whose parameters are percent-decoded after matching."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the request's raw path; each parameter comes decoded.

        :raises ApiError: 400 for what isn't UTF-8.
        """
        if scope["type"] != "http":
            return Match.NONE, {}
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        match = self.path_regex.match(raw.decode("latin-1"))
        if match is None:
            return Match.NONE, {}
        params: dict[str, Any] = {key: _decoded(value) for key, value in match.groupdict().items()}
        child: Scope = {"endpoint": self.endpoint, "path_params": params}
        allowed = not self.methods or scope["method"] in self.methods
        return (Match.FULL if allowed else Match.PARTIAL), child


def _decoded(value: str) -> str:
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise bad_request(f"{value!r} in the address is not percent-encoded UTF-8") from None
