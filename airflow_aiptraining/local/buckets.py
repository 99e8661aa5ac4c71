"""Routes of buckets: insert, get, list, patch, update, delete, permissions, layout."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from airflow_aiptraining.local import errors
from airflow_aiptraining.local.object_resources import (
    bucket_fields,
    bucket_resource,
    integer,
    json_body,
    merge_patch,
    preconditions,
)
from airflow_aiptraining.local.object_store import Bucket, ObjectStore
from airflow_aiptraining.local.raw_routes import RawPathRoute

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{1,220}[a-z0-9]")
_READING = ("storage.objects.get", "storage.objects.list", "storage.buckets.get")


def routes(store: ObjectStore) -> list[BaseRoute]:
    """Return the routes of buckets."""
    api = _Buckets(store)
    bucket = "/storage/v1/b/{bucket}"
    return [
        RawPathRoute("/storage/v1/b", api.insert, methods=["POST"]),
        RawPathRoute("/storage/v1/b", api.list, methods=["GET"]),
        RawPathRoute(bucket, api.get, methods=["GET"]),
        RawPathRoute(bucket, api.patch, methods=["PATCH"]),
        RawPathRoute(bucket, api.update, methods=["PUT"]),
        RawPathRoute(bucket, api.delete, methods=["DELETE"]),
        RawPathRoute(f"{bucket}/storageLayout", api.layout, methods=["GET"]),
        RawPathRoute(f"{bucket}/managedFolders", api.managed_folders, methods=["GET"]),
        RawPathRoute(f"{bucket}/iam", api.policy, methods=["GET"]),
        RawPathRoute(f"{bucket}/iam/testPermissions", api.permissions, methods=["GET"]),
    ]


class _Buckets:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def insert(self, request: Request) -> Response:
        project = request.query_params.get("project")
        if not project:
            raise errors.bad_request("Required parameter: project", reason="required")
        resource = await json_body(request)
        name = resource.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise errors.bad_request(
                f"Invalid bucket name: {name!r}. Lower-case letters, digits, '-', '_', '.', 3 or "
                "more of them, beginning and ending in a letter or digit"
            )
        fields = {k: v for k, v in _supported(bucket_fields(resource)).items() if v is not None}
        bucket = await run_in_threadpool(self._store.create_bucket, name, project, fields)
        return JSONResponse(bucket_resource(bucket, request))

    async def list(self, request: Request) -> Response:
        query = request.query_params
        project = query.get("project")
        if not project:
            raise errors.bad_request("Required parameter: project", reason="required")
        limit = page_size(integer(query, "maxResults"))
        start = page_start(query.get("pageToken"))
        found = await run_in_threadpool(
            self._store.list_buckets, project, query.get("prefix", ""), start
        )
        answer: dict[str, Any] = {"kind": "storage#buckets"}
        if found:
            answer["items"] = [bucket_resource(bucket, request) for bucket in found[:limit]]
        if len(found) > limit:
            answer["nextPageToken"] = page_token(found[limit].name)
        return JSONResponse(answer)

    async def get(self, request: Request) -> Response:
        bucket = await self._bucket(request)
        conditions = preconditions(request.query_params)
        conditions.require_match(bucket)
        if conditions.is_unmodified(bucket):
            return Response(status_code=304)
        return JSONResponse(bucket_resource(bucket, request))

    async def patch(self, request: Request) -> Response:
        change = _supported(bucket_fields(await json_body(request)))
        bucket = await run_in_threadpool(
            self._store.update_bucket,
            request.path_params["bucket"],
            lambda present: merge_patch(present, change),
            preconditions(request.query_params),
        )
        return JSONResponse(bucket_resource(bucket, request))

    async def update(self, request: Request) -> Response:
        fields = _supported(bucket_fields(await json_body(request)))
        bucket = await run_in_threadpool(
            self._store.update_bucket,
            request.path_params["bucket"],
            # The location of a bucket never changes.
            lambda present: fields | {"location": present.get("location")},
            preconditions(request.query_params),
        )
        return JSONResponse(bucket_resource(bucket, request))

    async def delete(self, request: Request) -> Response:
        await run_in_threadpool(
            self._store.delete_bucket,
            request.path_params["bucket"],
            preconditions(request.query_params),
        )
        return Response(status_code=204)

    async def layout(self, request: Request) -> Response:
        """Tell that the bucket is flat: gcloud and gcsfs ask before they treat it as folders."""
        resource = bucket_resource(await self._bucket(request), request)
        return JSONResponse(
            {
                "kind": "storage#storageLayout",
                "bucket": resource["name"],
                "location": resource["location"],
                "locationType": resource["locationType"],
                "hierarchicalNamespace": {"enabled": False},
            }
        )

    async def managed_folders(self, request: Request) -> Response:
        """Tell that there are none: ``gcloud storage rm -r`` asks before it removes a bucket."""
        await self._bucket(request)
        return JSONResponse({"kind": "storage#managedFolders"})

    async def policy(self, request: Request) -> Response:
        await self._bucket(request)
        return JSONResponse({"kind": "storage#policy", "version": 1, "etag": "CAE="})

    async def permissions(self, request: Request) -> Response:
        """Everything is allowed to everybody here, but writes to a read-only bucket."""
        bucket = await self._bucket(request)
        asked = request.query_params.getlist("permissions")
        granted = [each for each in asked if not bucket.is_read_only or each in _READING]
        return JSONResponse({"kind": "storage#testIamPermissionsResponse", "permissions": granted})

    async def _bucket(self, request: Request) -> Bucket:
        name = request.path_params["bucket"]
        bucket = await run_in_threadpool(self._store.get_bucket, name)
        if bucket is None:
            raise errors.bucket_not_found(name)
        return bucket


def _supported(fields: dict[str, Any]) -> dict[str, Any]:
    """Refuse what would change the meaning of later requests; the rest is only recorded."""
    for key, word in (("versioning", "versioning"), ("hierarchicalNamespace", "folders")):
        setting = fields.get(key)
        if isinstance(setting, dict) and setting.get("enabled"):
            raise errors.storage_error(
                501, "notImplemented", f"The embedded service has no object {word}: leave {key} out"
            )
    return fields


def page_size(asked: int | None, largest: int = 1000) -> int:
    """Return how many items a page holds.

    :raises ApiError: 400.
    """
    if asked is not None and asked < 0:
        raise errors.bad_request("Invalid value for maxResults: it is negative")
    return min(asked or largest, largest)


def page_token(start: str) -> str:
    """Return the token of the page that begins with this name."""
    return base64.urlsafe_b64encode(start.encode()).decode()


def page_start(token: str | None) -> str:
    """Return the first name of a token's page.

    :raises ApiError: 400.
    """
    try:
        return base64.b64decode(token or "", altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise errors.bad_request("Invalid pageToken") from None
