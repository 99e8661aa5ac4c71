"""Answering an object's bytes: ranges, gzip transcoding, checksums in headers."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from email.utils import format_datetime
from typing import BinaryIO
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from airflow_aiptraining.local import errors
from airflow_aiptraining.local.object_resources import etag
from airflow_aiptraining.local.object_store import (
    NO_CONDITIONS,
    ObjectStore,
    Preconditions,
    StoredObject,
)

_BLOCK = 1024 * 1024
_RANGE = re.compile(r"\s*bytes\s*=\s*(\d{0,19})\s*-\s*(\d{0,19})\s*")


async def media_response(
    store: ObjectStore,
    bucket: str,
    name: str,
    request: Request,
    *,
    generation: int | None = None,
    conditions: Preconditions = NO_CONDITIONS,
) -> Response:
    """Return the answer that carries an object's bytes, or the part of them that is asked for.

    Small ones are read at once; larger ones stream, a block a time, from worker threads.

    :raises ApiError: 404, 412, 416.
    """
    found, file = await run_in_threadpool(store.open, bucket, name, generation)
    try:
        conditions.require_match(found)
        if conditions.is_unmodified(found):
            file.close()
            return Response(status_code=304)
        headers = _headers(found)
        if _is_transcoded(found, request) and await run_in_threadpool(_is_gzip, file):
            # The length after decompression isn't known, and ranges of it don't exist.
            del headers["content-encoding"]
            headers["warning"] = "214 UploadServer gunzipped"
            headers["vary"] = "Accept-Encoding"
            return _answer(request, 200, headers, file, _gunzipped(file))
        status = 200
        part = parse_range(request.headers.get("range", ""), found.size)
        if part is None:
            part = range(found.size)
        else:
            status = 206
            headers["content-range"] = f"bytes {part.start}-{part.stop - 1}/{found.size}"
        headers["content-length"] = str(len(part))
        if len(part) <= _BLOCK:
            data = await run_in_threadpool(_read, file, part)
            return Response(data, status, headers)
        return _answer(request, status, headers, file, _blocks(file, part))
    except BaseException:
        file.close()
        raise


def parse_range(header: str, size: int) -> range | None:
    """Return the bytes that a Range header asks for.

    :param size: of the object, in bytes.
    :return: None for all of them: no header, several ranges, or not understood (RFC 9110 lets a
        server ignore those).
    :raises ApiError: 416 where no such bytes are.
    """
    match = _RANGE.fullmatch(header)
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:
        part = range(max(size - int(last), 0), size)
    else:
        part = range(int(first), min(int(last) + 1, size) if last else size)
        if last and int(last) < int(first):
            return None
    if not part:
        raise errors.ApiError(
            416,
            "OUT_OF_RANGE",
            f"The requested range can't be satisfied: the object has {size} bytes.",
            reason="requestedRangeNotSatisfiable",
            headers={"content-range": f"bytes */{size}"},
        )
    return part


def _headers(found: StoredObject) -> dict[str, str]:
    hashes = f"crc32c={found.crc32c}" + (f",md5={found.md5}" if found.md5 else "")
    headers = {
        "content-type": str(found.attributes.get("contentType", "application/octet-stream")),
        "etag": f'"{etag(found)}"',
        "last-modified": format_datetime(found.updated, usegmt=True),
        "accept-ranges": "bytes",
        "x-goog-generation": str(found.generation),
        "x-goog-metageneration": str(found.metageneration),
        "x-goog-hash": hashes,
        "x-goog-storage-class": "STANDARD",
        "x-goog-stored-content-length": str(found.size),
        "x-goog-stored-content-encoding": found.attributes.get("contentEncoding", "identity"),
    }
    for header, attribute in (
        ("content-encoding", "contentEncoding"),
        ("content-disposition", "contentDisposition"),
        ("content-language", "contentLanguage"),
        ("cache-control", "cacheControl"),
    ):
        if found.attributes.get(attribute):
            headers[header] = str(found.attributes[attribute])
    for key, value in found.attributes.get("metadata", {}).items():
        if re.fullmatch(r"[A-Za-z0-9_.-]+", key):
            headers[f"x-goog-meta-{key.lower()}"] = quote(
                value, safe=" !#$&'()*+,/:;=?@[]~{}\"<>|^`\\"
            )
    # Headers are Latin-1 on the wire; names of files may be anything.
    return {key: value.encode().decode("latin-1") for key, value in headers.items()}


def _is_transcoded(found: StoredObject, request: Request) -> bool:
    return (
        found.attributes.get("contentEncoding") == "gzip"
        and "gzip" not in request.headers.get("accept-encoding", "").lower()
        and "no-transform" not in str(found.attributes.get("cacheControl", "")).lower()
    )


def _is_gzip(file: BinaryIO) -> bool:
    """Whether the bytes are what contentEncoding says; else they are served as they are."""
    magic = file.read(2)
    file.seek(0)
    return magic == b"\x1f\x8b"


def _answer(
    request: Request, status: int, headers: dict[str, str], file: BinaryIO, body: Iterator[bytes]
) -> Response:
    if request.method == "HEAD":
        file.close()
        return Response(status_code=status, headers=headers)
    return StreamingResponse(body, status, headers)


def _read(file: BinaryIO, part: range) -> bytes:
    with file:
        file.seek(part.start)
        return file.read(len(part))


def _blocks(file: BinaryIO, part: range) -> Iterator[bytes]:
    with file:
        file.seek(part.start)
        left = len(part)
        while left and (block := file.read(min(_BLOCK, left))):
            left -= len(block)
            yield block


def _gunzipped(file: BinaryIO) -> Iterator[bytes]:
    with file:
        inflate = zlib.decompressobj(wbits=31)
        while block := file.read(_BLOCK // 8):
            while block:
                yield inflate.decompress(block, _BLOCK)
                block = inflate.unconsumed_tail
                if inflate.eof and inflate.unused_data:  # gzip files may be concatenated
                    block = inflate.unused_data
                    inflate = zlib.decompressobj(wbits=31)
        yield inflate.flush()
