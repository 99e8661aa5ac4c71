"""Multipart bodies as Google's clients write them.

They differ from the standard: gcloud quotes the boundary with single quotes in the header and ends
lines with a bare LF; others use CRLF.  The line ending of the first boundary decides for the body,
so that a trailing CR of a payload stays the payload's.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

_MAX_HEAD = 1024 * 1024


class MultipartError(ValueError):
    """The body isn't multipart as its Content-Type says."""


def boundary_of(content_type: str) -> bytes:
    """Return the boundary of a Content-Type, without quotes of either kind.

    :raises MultipartError: there is none.
    """
    match = re.search(
        r";\s*boundary\s*=\s*(?:\"([^\"]+)\"|'([^']+)'|([^;\s]+))", content_type, re.IGNORECASE
    )
    if match is None or not content_type.lower().startswith("multipart/"):
        raise MultipartError(f"Content-Type {content_type!r} names no multipart boundary")
    return next(group for group in match.groups() if group).encode("latin-1")


def parse_headers(data: bytes, *, first_line: bool = False) -> tuple[dict[str, str], bytes]:
    """Split a part into its headers, names in lower case, and its content.

    :param first_line: the first line is no header; it is returned under the empty name.
    :raises MultipartError: no empty line ends the headers.
    """
    headers: dict[str, str] = {}
    rest = data
    while True:
        line, separator, rest = rest.partition(b"\n")
        text = line.rstrip(b"\r").decode("utf-8", "replace")
        if first_line:
            if text:
                headers[""] = text
                first_line = False
        elif not text:
            return headers, rest
        else:
            name, colon, value = text.partition(":")
            if colon:
                headers[name.strip().lower()] = value.strip()
        if not separator:
            if first_line:
                raise MultipartError("a part is empty")
            return headers, b""


def split(body: bytes, boundary: bytes) -> list[tuple[dict[str, str], bytes]]:
    """Return the parts of a small body: headers and content.

    :raises MultipartError: it isn't whole.
    """
    opening = b"--" + boundary
    start = body.find(opening)
    if start < 0:
        raise MultipartError(f"the boundary {boundary!r} is not in the body")
    newline = _newline(body[start + len(opening) :])
    pieces = (newline + body[start:]).split(newline + opening)[1:]
    parts: list[tuple[dict[str, str], bytes]] = []
    for piece in pieces:
        if piece.startswith(b"--"):
            return parts
        parts.append(parse_headers(piece.partition(b"\n")[2]))
    raise MultipartError("the closing boundary is missing")


class RelatedReader:
    """Reads multipart/related of two parts: metadata, then bytes, streamed.

    :param chunks: the request's body.
    :param boundary: as ``boundary_of`` returns it.
    """

    def __init__(self, chunks: AsyncIterator[bytes], boundary: bytes) -> None:
        self._chunks = chunks
        self._opening = b"--" + boundary
        self._closing = b""
        self._buffer = b""

    async def metadata(self) -> tuple[bytes, dict[str, str]]:
        """Return the first part's content and the second part's headers.

        :raises MultipartError: the body isn't like that.
        """
        while (start := self._buffer.find(self._opening)) < 0 or b"\n" not in self._buffer[start:]:
            await self._more()
        newline = _newline(self._buffer[start + len(self._opening) :])
        self._closing = newline + self._opening
        line_end = self._buffer.index(b"\n", start)
        while (second := self._buffer.find(self._closing, line_end)) < 0:
            await self._more()
        _, content = parse_headers(self._buffer[line_end + 1 : second])
        head = second + len(self._closing)
        while (end := _end_of_headers(self._buffer, head)) < 0:
            await self._more()
        headers, _ = parse_headers(self._buffer[self._buffer.index(b"\n", head) + 1 : end])
        # The newline before the boundary is the boundary's: an empty payload has only that one.
        self._buffer = self._buffer[end:]
        return content, headers

    async def payload(self) -> AsyncIterator[bytes]:
        """Yield the second part's content.

        :raises MultipartError: the closing boundary never comes.
        """
        # An empty payload: the boundary follows the empty line at once, without a line break.
        at_start = True
        held = len(self._closing) + 2
        while True:
            if at_start and len(self._buffer) >= held:
                at_start = False
                if self._ends(self._buffer, 0, self._opening):
                    return
            at = self._buffer.find(self._closing)
            while at >= 0:
                if len(self._buffer) < at + held:
                    break
                if self._ends(self._buffer, at, self._closing):
                    yield self._buffer[:at]
                    return
                at = self._buffer.find(self._closing, at + 1)
            ready = at if at >= 0 else len(self._buffer) - held
            if ready > 0 and not at_start:
                yield self._buffer[:ready]
                self._buffer = self._buffer[ready:]
            try:
                await self._more(bounded=False)
            except MultipartError:
                if at_start and self._ends(self._buffer, 0, self._opening):
                    return
                at = self._buffer.rfind(self._closing)
                if at >= 0 and self._ends(self._buffer, at, self._closing):
                    yield self._buffer[:at]
                    return
                raise

    @staticmethod
    def _ends(data: bytes, at: int, boundary: bytes) -> bool:
        """Whether a boundary stands here, not a longer word that begins like it."""
        if not data.startswith(boundary, at):
            return False
        following = data[at + len(boundary) : at + len(boundary) + 2]
        return following == b"--" or following.lstrip(b" \t")[:1] in (b"\r", b"\n", b"")

    async def _more(self, *, bounded: bool = True) -> None:
        if bounded and len(self._buffer) > _MAX_HEAD:
            raise MultipartError(f"the metadata is larger than {_MAX_HEAD} bytes")
        async for chunk in self._chunks:
            if chunk:
                self._buffer += chunk
                return
        raise MultipartError("it ends before its closing boundary")


def _newline(after_boundary: bytes) -> bytes:
    line = after_boundary.partition(b"\n")[0]
    return b"\r\n" if line.endswith(b"\r") else b"\n"


def _end_of_headers(data: bytes, start: int) -> int:
    """Return where the content begins after headers that begin at ``start``, or -1."""
    match = re.compile(rb"\r?\n\r?\n").search(data, start)
    return match.end() if match else -1
