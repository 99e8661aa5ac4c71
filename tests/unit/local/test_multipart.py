"""Multipart bodies, cut anywhere by the network."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_aiptraining.local.multipart import (
    MultipartError,
    RelatedReader,
    boundary_of,
    parse_headers,
    split,
)

TRICKY = st.lists(
    st.sampled_from(
        [b"\r", b"\n", b"\r\n", b"--", b"--B", b"--B-", b"-", b"x", b"\r\n--Bx", b"\0"]
    ),
    max_size=12,
).map(b"".join)


def read(body: bytes, piece: int) -> tuple[bytes, dict[str, str], bytes]:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), piece):
            yield body[start : start + piece]

    async def reading() -> tuple[bytes, dict[str, str], bytes]:
        reader = RelatedReader(chunks(), b"B")
        content, headers = await reader.metadata()
        return content, headers, b"".join([part async for part in reader.payload()])

    return asyncio.run(reading())


def body_of(payload: bytes, newline: bytes) -> bytes:
    lines = [b"--B", b"Content-Type: application/json", b"", b"{}"]
    lines += [b"--B", b"Content-Type: x/y", b"", payload, b"--B--", b""]
    return newline.join(lines)


@given(payload=TRICKY, newline=st.sampled_from([b"\n", b"\r\n"]), piece=st.integers(1, 60))
def test_payload_arrives_as_it_was_however_it_is_cut(
    payload: bytes, newline: bytes, piece: int
) -> None:
    # A payload that holds its own boundary, followed by what ends one, is no multipart.
    assume(not re.search(newline + rb"--B(--|[\r\n]|$)", newline + payload))

    assert read(body_of(payload, newline), piece) == (b"{}", {"content-type": "x/y"}, payload)


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_cut_off_body_is_an_error(piece: int) -> None:
    whole = body_of(b"payload", b"\r\n")
    for end in range(len(whole) - len(b"--\r\n")):
        with pytest.raises(MultipartError):
            read(whole[:end], piece)


@pytest.mark.parametrize(
    ("header", "boundary"),
    [
        ("multipart/related; boundary=abc", b"abc"),
        ("multipart/related; boundary='===a=='", b"===a=="),
        ('multipart/mixed; type="x"; Boundary="a b"; y=1', b"a b"),
        ("Multipart/Related;boundary=a;type=b", b"a"),
    ],
)
def test_boundary_is_read_in_any_quotes(header: str, boundary: bytes) -> None:
    assert boundary_of(header) == boundary


@pytest.mark.parametrize("header", ["", "multipart/related", "text/plain; boundary=a"])
def test_missing_boundary_is_an_error(header: str) -> None:
    with pytest.raises(MultipartError, match="boundary"):
        boundary_of(header)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_small_body_is_split(newline: bytes) -> None:
    body = newline.join([b"--B", b"A: 1", b"", b"one", b"--B", b"", b"two", b"", b"--B--", b""])

    assert split(body, b"B") == [({"a": "1"}, b"one"), ({}, b"two" + newline)]


@pytest.mark.parametrize("body", [b"", b"--B\n\nx", b"nothing"])
def test_unfinished_small_body_is_an_error(body: bytes) -> None:
    with pytest.raises(MultipartError):
        split(body, b"B")


def test_request_line_is_no_header() -> None:
    assert parse_headers(b"\nGET /x HTTP/1.1\r\nA: b\r\n\r\nbody", first_line=True) == (
        {"": "GET /x HTTP/1.1", "a": "b"},
        b"body",
    )
