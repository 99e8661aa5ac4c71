"""Routes of objects but for uploads: get, download, list, delete, patch, copy, rewrite, compose."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from airflow_aiptraining.local import errors
from airflow_aiptraining.local.buckets import page_size, page_start, page_token
from airflow_aiptraining.local.downloads import media_response
from airflow_aiptraining.local.errors import ApiError
from airflow_aiptraining.local.object_listing import Query
from airflow_aiptraining.local.object_resources import (
    WRITABLE,
    check_object_name,
    flag,
    integer,
    json_body,
    object_resource,
    patched,
    preconditions,
    writable,
)
from airflow_aiptraining.local.object_store import Arrival, ObjectStore, Preconditions, StoredObject
from airflow_aiptraining.local.raw_routes import RawPathRoute

_MAX_COMPONENTS = 32  # of one compose request
_ALL_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def routes(store: ObjectStore) -> list[BaseRoute]:
    """Return the routes of objects. The last ones match any address of two parts."""
    api = _Objects(store)
    bucket = "/storage/v1/b/{bucket}"
    an_object = bucket + "/o/{object}"
    target = "/b/{target_bucket}/o/{target}"
    return [
        RawPathRoute(f"{bucket}/o", api.list, methods=["GET"]),
        RawPathRoute(an_object, api.get, methods=["GET"]),
        RawPathRoute(an_object, api.patch, methods=["PATCH"]),
        RawPathRoute(an_object, api.update, methods=["PUT"]),
        RawPathRoute(an_object, api.delete, methods=["DELETE"]),
        RawPathRoute(f"{an_object}/copyTo{target}", api.copy, methods=["POST"]),
        RawPathRoute(f"{an_object}/rewriteTo{target}", api.rewrite, methods=["POST"]),
        RawPathRoute(f"{an_object}/moveTo/o/{{target}}", api.move, methods=["POST"]),
        RawPathRoute(f"{an_object}/compose", api.compose, methods=["POST"]),
        RawPathRoute("/download" + an_object, api.download, methods=["GET"]),
        RawPathRoute("/storage/v1/{rest:path}", _unsupported, methods=_ALL_METHODS),
        # The XML API's address; TensorFlow's file system and public links read by it.
        RawPathRoute("/{bucket}/{object:path}", api.xml_get, methods=["GET"]),
    ]


async def _unsupported(request: Request) -> Response:
    raise errors.storage_error(
        501,
        "notImplemented",
        f"The embedded Cloud Storage has no {request.method} {request.url.path}. Its routing "
        "tables are the list of what it has.",
    )


class _Objects:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def list(self, request: Request) -> Response:
        query = request.query_params
        if flag(query, "softDeleted"):  # nothing is kept after deletion
            return JSONResponse({"kind": "storage#objects"})
        limit = page_size(integer(query, "maxResults"))
        asked = Query(
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            start=max(query.get("startOffset", ""), page_start(query.get("pageToken"))),
            end=query.get("endOffset", ""),
            glob=query.get("matchGlob", ""),
            limit=limit,
            include_trailing=flag(query, "includeTrailingDelimiter"),
        )
        try:
            page = await run_in_threadpool(
                self._store.list_page, request.path_params["bucket"], asked
            )
        except re.error as error:
            raise errors.bad_request(f"Invalid matchGlob {asked.glob!r}: {error}") from None
        answer: dict[str, Any] = {"kind": "storage#objects"}
        if page.prefixes:
            answer["prefixes"] = page.prefixes
        if page.objects:
            answer["items"] = [object_resource(found, request) for found in page.objects]
        if page.next is not None:
            answer["nextPageToken"] = page_token(page.next)
        return JSONResponse(answer)

    async def get(self, request: Request) -> Response:
        if request.query_params.get("alt") == "media":
            return await self.download(request)
        query = request.query_params
        conditions = preconditions(query)
        found = await run_in_threadpool(
            self._store.require, *_address(request), integer(query, "generation")
        )
        conditions.require_match(found)
        if conditions.is_unmodified(found):
            return Response(status_code=304)
        return JSONResponse(object_resource(found, request))

    async def download(self, request: Request) -> Response:
        query = request.query_params
        return await media_response(
            self._store,
            *_address(request),
            request,
            generation=integer(query, "generation"),
            conditions=preconditions(query),
        )

    async def xml_get(self, request: Request) -> Response:
        try:
            response = await media_response(
                self._store,
                *_address(request),
                request,
                generation=integer(request.query_params, "generation"),
            )
        except ApiError as error:
            code = {404: "NoSuchKey", 416: "InvalidRange"}.get(error.status, "InvalidArgument")
            body = (
                "<?xml version='1.0' encoding='UTF-8'?><Error><Code>"
                f"{code}</Code><Message>{escape(error.message)}</Message></Error>"
            )
            return Response(body, error.status, error.headers, "application/xml")
        return response

    async def patch(self, request: Request) -> Response:
        change = await json_body(request)
        return await self._change(request, lambda present: patched(present, change))

    async def update(self, request: Request) -> Response:
        fields = writable(await json_body(request))
        return await self._change(request, lambda present: fields)

    async def _change(self, request: Request, change: Any) -> Response:
        found = await run_in_threadpool(
            self._store.update,
            *_address(request),
            change,
            integer(request.query_params, "generation"),
            preconditions(request.query_params),
        )
        return JSONResponse(object_resource(found, request))

    async def delete(self, request: Request) -> Response:
        await run_in_threadpool(
            self._store.delete,
            *_address(request),
            integer(request.query_params, "generation"),
            preconditions(request.query_params),
        )
        return Response(status_code=204)

    async def copy(self, request: Request) -> Response:
        return JSONResponse(object_resource(await self._copied(request), request))

    async def rewrite(self, request: Request) -> Response:
        stored = await self._copied(request)
        return JSONResponse(
            {
                "kind": "storage#rewriteResponse",
                "totalBytesRewritten": str(stored.size),
                "objectSize": str(stored.size),
                "done": True,
                "resource": object_resource(stored, request),
            }
        )

    async def move(self, request: Request) -> Response:
        return JSONResponse(object_resource(await self._copied(request, move=True), request))

    async def _copied(self, request: Request, move: bool = False) -> StoredObject:
        query = request.query_params
        params = request.path_params
        resource = await json_body(request)
        source = await run_in_threadpool(
            self._store.require, *_address(request), integer(query, "sourceGeneration")
        )
        # A body that sets nothing (clients send the new name only) keeps the source's metadata.
        replaces = any(resource.get(key) is not None for key in WRITABLE)
        return await run_in_threadpool(
            self._store.copy,
            source,
            params.get("target_bucket", params["bucket"]),
            check_object_name(params["target"]),
            attributes=writable(resource) if replaces else None,
            source_preconditions=preconditions(query, source=True),
            preconditions=preconditions(query),
            move=move,
        )

    async def compose(self, request: Request) -> Response:
        body = await json_body(request)
        sources = body.get("sourceObjects")
        destination = body.get("destination") or {}
        if not isinstance(destination, dict):
            raise errors.bad_request("destination must be an object's resource")
        if not isinstance(sources, list) or not all(isinstance(each, dict) for each in sources):
            raise errors.bad_request("sourceObjects must list objects", reason="required")
        if not 1 <= len(sources) <= _MAX_COMPONENTS:
            raise errors.bad_request(
                f"sourceObjects must list 1 to {_MAX_COMPONENTS} objects", reason="required"
            )
        stored = await run_in_threadpool(
            self._composed,
            *_address(request),
            sources,
            writable(destination),
            preconditions(request.query_params),
        )
        return JSONResponse(object_resource(stored, request))

    def _composed(
        self,
        bucket: str,
        name: str,
        sources: Sequence[dict[str, Any]],
        attributes: dict[str, Any],
        conditions: Preconditions,
    ) -> StoredObject:
        check_object_name(name)
        self._store.check_writable(bucket, name, conditions)
        count = 0
        spool = self._store.files.spool()
        try:
            for each in sources:
                part, file = self._store.open(
                    bucket, check_object_name(each.get("name")), integer(each, "generation")
                )
                with file:
                    preconditions(each.get("objectPreconditions") or {}).require(part)
                    while block := file.read(1024 * 1024):
                        spool.write(block)
                count += part.component_count or 1
            arrival = Arrival({"contentType": "application/octet-stream"} | attributes, conditions)
            return self._store.put(bucket, name, spool, arrival, component_count=count)
        finally:
            spool.discard()


def _address(request: Request) -> tuple[str, str]:
    return request.path_params["bucket"], request.path_params["object"]
