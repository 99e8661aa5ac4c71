"""Routes of uploads: media, multipart, resumable.

Bytes go to disk as they arrive, a block at a time in a worker thread, so a large upload holds
neither memory nor the event loop.  Source: Cloud Storage documentation, "Uploads and downloads".
"""

from __future__ import annotations

import asyncio
import re
import weakref
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from airflow_aiptraining.local import errors
from airflow_aiptraining.local.multipart import MultipartError, RelatedReader, boundary_of
from airflow_aiptraining.local.object_files import Spool
from airflow_aiptraining.local.object_resources import (
    check_object_name,
    given_hashes,
    object_resource,
    parse_json,
    preconditions,
    writable,
)
from airflow_aiptraining.local.object_store import Arrival, ObjectStore
from airflow_aiptraining.local.raw_routes import RawPathRoute
from airflow_aiptraining.local.upload_sessions import Session, UploadSessions

_BLOCK = 1024 * 1024
_MAX_METADATA = 1024 * 1024
_RANGE = re.compile(r"bytes\s+(?:(\d{1,19})-(\d{1,19})|\*)/(\d{1,19}|\*)")


def routes(store: ObjectStore) -> list[BaseRoute]:
    """Return the routes of uploads. gcloud begins resumable ones under a prefix of their own."""
    api = _Uploads(store)
    found: list[BaseRoute] = []
    for prefix in ("/upload", "/resumable/upload"):
        path = prefix + "/storage/v1/b/{bucket}/o"
        found.append(RawPathRoute(path, api.start, methods=["POST"]))
        found.append(RawPathRoute(path, api.resume, methods=["PUT"]))
        found.append(RawPathRoute(path, api.cancel, methods=["DELETE"]))
    return found


class _Uploads:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._sessions = UploadSessions(store)
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def start(self, request: Request) -> Response:
        query = request.query_params
        if query.get("upload_id"):
            return await self.resume(request)
        match query.get("uploadType"):
            case "media":
                return await self._media(request)
            case "multipart":
                return await self._multipart(request)
            case "resumable":
                return await self._begin(request)
        raise errors.bad_request("uploadType must be media, multipart or resumable")

    # --- in one request --------------------------------------------------------------------------

    async def _media(self, request: Request) -> Response:
        return await self._store_at_once(request, {}, _body(request))

    async def _multipart(self, request: Request) -> Response:
        try:
            boundary = boundary_of(request.headers.get("content-type", ""))
            reader = RelatedReader(_body(request), boundary)
            metadata, headers = await reader.metadata()
            if headers.get("content-transfer-encoding", "binary").lower() == "base64":
                raise MultipartError("base64 parts are not supported: send the bytes as they are")
            resource = parse_json(metadata)
            resource.setdefault("contentType", headers.get("content-type"))
            return await self._store_at_once(request, resource, reader.payload(), multipart=True)
        except MultipartError as error:
            raise errors.bad_request(f"The multipart body can't be read: {error}") from None

    async def _store_at_once(
        self,
        request: Request,
        resource: dict[str, Any],
        chunks: AsyncIterator[bytes],
        multipart: bool = False,
    ) -> Response:
        content_type = None if multipart else request.headers.get("content-type")
        name, arrival = _arrival(request, resource, content_type)
        bucket = request.path_params["bucket"]
        await run_in_threadpool(self._store.check_writable, bucket, name, arrival.preconditions)
        spool = self._store.files.spool()
        try:
            await _receive(chunks, spool)
            stored = await run_in_threadpool(self._store.put, bucket, name, spool, arrival)
        finally:
            await run_in_threadpool(spool.discard)
        return JSONResponse(object_resource(stored, request))

    # --- resumable -------------------------------------------------------------------------------

    async def _begin(self, request: Request) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_METADATA:
                raise errors.bad_request(f"The metadata is larger than {_MAX_METADATA} bytes")
        content_type = request.headers.get("x-upload-content-type")
        name, arrival = _arrival(request, parse_json(bytes(body)), content_type)
        announced = request.headers.get("x-upload-content-length", "")
        if announced.isdecimal():
            arrival = replace(arrival, size=int(announced))
        session = await run_in_threadpool(
            self._sessions.start, request.path_params["bucket"], name, arrival
        )
        address = request.url.replace(query=f"uploadType=resumable&upload_id={session.id}")
        return Response(
            status_code=200,
            headers={"location": str(address), "x-guploader-uploadid": session.id},
        )

    async def resume(self, request: Request) -> Response:
        session_id = _session_id(request)
        header = request.headers.get("content-range")
        match = _RANGE.fullmatch(header.strip()) if header is not None else None
        if header is not None and match is None:
            raise errors.bad_request(f"Content-Range {header!r} can't be read")
        first, last, total = match.groups() if match else ("0", None, "*")
        if first is None and total == "*":
            # Only asks how far the upload is: never waits for one that is under way.
            session = await run_in_threadpool(self._sessions.find, session_id)
            return _progress(session, session.received, request)
        # Two requests of one session: a client that gave up waiting and tries again.
        lock = self._locks.setdefault(session_id, asyncio.Lock())
        async with lock:
            session = await run_in_threadpool(self._sessions.find, session_id)
            if session.result is not None:
                return _progress(session, session.received, request)
            spool = await run_in_threadpool(self._sessions.spool, session)
            if first is not None:
                await self._append(request, session, spool, int(first), last)
                if match is None:
                    total = str(spool.size)  # a body without a range is all there is
            if total == "*" or int(total) > spool.size:
                return _progress(
                    session, session.received if first is None else spool.size, request
                )
            if int(total) < spool.size:
                raise errors.bad_request(
                    f"{spool.size} bytes have arrived, Content-Range says {total} in all"
                )
            hashes = given_hashes({}, request.headers.getlist("x-goog-hash"))
            arrival = replace(
                session.arrival,
                md5=hashes[0] or session.arrival.md5,
                crc32c=hashes[1] or session.arrival.crc32c,
            )
            stored = await run_in_threadpool(self._sessions.finish, session, spool, arrival)
        return JSONResponse(object_resource(stored, request))

    async def _append(
        self, request: Request, session: Session, spool: Spool, first: int, last: str | None
    ) -> None:
        """Add a chunk; what arrives of it stays, even if the client goes away in the middle."""
        if first > spool.size:
            raise errors.bad_request(
                f"The chunk begins at byte {first}, but only {spool.size} bytes have arrived. "
                "Ask with 'Content-Range: bytes */*' where to go on"
            )
        start = spool.size
        known = spool.size - first  # sent again after a lost answer
        try:
            await _receive(_without(_body(request), known), spool)
        finally:
            await run_in_threadpool(self._sessions.acknowledge, session, spool)
        if last is not None and spool.size != max(int(last) + 1, start):
            raise errors.bad_request(
                f"Content-Range announced bytes {first} to {last}, but {spool.size} bytes are here"
            )

    async def cancel(self, request: Request) -> Response:
        session_id = _session_id(request)
        async with self._locks.setdefault(session_id, asyncio.Lock()):
            session = await run_in_threadpool(self._sessions.find, session_id)
            await run_in_threadpool(self._sessions.cancel, session)
        return Response(status_code=499)  # as Cloud Storage answers a cancelled upload


def _session_id(request: Request) -> str:
    session = request.query_params.get("upload_id")
    if not session:
        raise errors.bad_request("Required parameter: upload_id", reason="required")
    return session


def _progress(session: Session, received: int, request: Request) -> Response:
    if session.result is not None:
        return JSONResponse(object_resource(session.result, request))
    headers = {"range": f"bytes=0-{received - 1}"} if received else {}
    return Response(status_code=308, headers=headers)


def _arrival(
    request: Request, resource: dict[str, Any], content_type: str | None
) -> tuple[str, Arrival]:
    """Return the object's name and what the request says about it."""
    query = request.query_params
    name = check_object_name(query.get("name") or resource.get("name"))
    attributes = writable(resource)
    attributes.setdefault("contentType", content_type or "application/octet-stream")
    if query.get("contentEncoding"):
        attributes["contentEncoding"] = query["contentEncoding"]
    md5, crc32c = given_hashes(resource, request.headers.getlist("x-goog-hash"))
    return name, Arrival(writable(attributes), preconditions(query), md5, crc32c)


async def _receive(chunks: AsyncIterator[bytes], spool: Spool) -> None:
    """Write chunks in blocks, each in a worker thread, which also hashes it."""
    block = bytearray()
    try:
        async for chunk in chunks:
            block += chunk
            if len(block) >= _BLOCK:
                await run_in_threadpool(spool.write, bytes(block))
                block.clear()
    finally:
        if block:
            await run_in_threadpool(spool.write, bytes(block))


async def _without(chunks: AsyncIterator[bytes], count: int) -> AsyncIterator[bytes]:
    """Yield what follows the first ``count`` bytes."""
    async for chunk in chunks:
        yield chunk[count:]
        count = max(count - len(chunk), 0)


async def _body(request: Request) -> AsyncIterator[bytes]:
    """Yield the request's body, decompressed if it was compressed for the way (gcloud -J).

    An object that is to stay compressed is said to be so by ``contentEncoding`` instead.

    :raises ApiError: 400.
    """
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        async for chunk in request.stream():
            yield chunk
        return
    if encoding != "gzip":
        raise errors.bad_request(f"Content-Encoding {encoding!r} is not supported, only gzip")
    inflate = zlib.decompressobj(wbits=31)
    try:
        async for chunk in request.stream():
            while chunk:
                yield inflate.decompress(chunk, _BLOCK)
                chunk = inflate.unconsumed_tail
        yield inflate.flush()
    except zlib.error as error:
        raise errors.bad_request(
            f"The body is not gzip as Content-Encoding says: {error}"
        ) from None
    if not inflate.eof or inflate.unused_data:
        raise errors.bad_request("The gzip body ends too early, or something follows it")
