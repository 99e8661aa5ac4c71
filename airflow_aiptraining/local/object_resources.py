"""The JSON shapes of buckets and objects, and what their requests have in common.

Source: Cloud Storage JSON API v1, resource representations of buckets and objects.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from airflow_aiptraining.local.errors import bad_request
from airflow_aiptraining.local.object_store import Bucket, Preconditions, StoredObject

WRITABLE = (
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "eventBasedHold",
    "metadata",
    "storageClass",
    "temporaryHold",
)
"""What clients may set of an object; Google ignores the rest of a resource too."""

_BUCKET_READ_ONLY = frozenset(
    ("kind", "id", "selfLink", "name", "project", "projectNumber", "generation")
) | frozenset(
    ("metageneration", "etag", "timeCreated", "updated", "locationType", "acl", "defaultObjectAcl")
)


def object_resource(found: StoredObject, request: Request) -> dict[str, Any]:
    """Return ``storage#object``."""
    root = f"{request.url.scheme}://{request.headers['host']}"
    address = f"storage/v1/b/{quote(found.bucket, safe='')}/o/{quote(found.name, safe='')}"
    resource: dict[str, Any] = {
        "kind": "storage#object",
        "id": f"{found.bucket}/{found.name}/{found.generation}",
        "selfLink": f"{root}/{address}",
        "mediaLink": f"{root}/download/{address}?generation={found.generation}&alt=media",
        "name": found.name,
        "bucket": found.bucket,
        "generation": str(found.generation),
        "metageneration": str(found.metageneration),
        "storageClass": "STANDARD",
        "size": str(found.size),
        "crc32c": found.crc32c,
        "etag": etag(found),
        "timeCreated": timestamp(found.created),
        "updated": timestamp(found.updated),
        "timeStorageClassUpdated": timestamp(found.created),
        "timeFinalized": timestamp(found.created),
    }
    if found.md5 is not None:
        resource["md5Hash"] = found.md5
    if found.component_count is not None:
        resource["componentCount"] = found.component_count
    return resource | dict(found.attributes)


def bucket_resource(bucket: Bucket, request: Request) -> dict[str, Any]:
    """Return ``storage#bucket``: a service's defaults under what was set."""
    root = f"{request.url.scheme}://{request.headers['host']}"
    location = str(bucket.resource.get("location") or "US").upper()
    defaults = {
        "storageClass": "STANDARD",
        "iamConfiguration": {
            "bucketPolicyOnly": {"enabled": False},
            "uniformBucketLevelAccess": {"enabled": False},
            "publicAccessPrevention": "inherited",
        },
        "rpo": "DEFAULT",
    }
    computed = {
        "kind": "storage#bucket",
        "id": bucket.name,
        "selfLink": f"{root}/storage/v1/b/{bucket.name}",
        "name": bucket.name,
        # Google's are assigned; any stable number does for clients that group by it.
        "projectNumber": str(zlib.crc32(bucket.project.encode())),
        "generation": str(int(bucket.created.timestamp() * 1_000_000)),
        "metageneration": str(bucket.metageneration),
        "location": location,
        "locationType": "multi-region" if location in ("US", "EU", "ASIA") else "region",
        "etag": _etag_of(bucket.metageneration),
        "timeCreated": timestamp(bucket.created),
        "updated": timestamp(bucket.updated),
    }
    return defaults | dict(bucket.resource) | computed


def etag(found: StoredObject) -> str:
    """Return an object's entity tag, different for each change of bytes or metadata."""
    return _etag_of(found.generation, found.metageneration)


def _etag_of(*versions: int) -> str:
    return base64.b64encode("/".join(map(str, versions)).encode()).decode()


def timestamp(moment: datetime) -> str:
    """Return RFC 3339 in UTC with milliseconds, as the API writes it."""
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


async def json_body(request: Request) -> dict[str, Any]:
    """Return a request's JSON object; empty where there is no body.

    :raises ApiError: 400.
    """
    return parse_json(await request.body())


def parse_json(data: bytes) -> dict[str, Any]:
    """Return a JSON object; empty for no bytes.

    :raises ApiError: 400.
    """
    if not data.strip():
        return {}
    try:
        parsed = json.loads(data)
        # Lone surrogates are legal JSON escapes and no text.
        json.dumps(parsed, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise bad_request(f"The body is not JSON: {error}", reason="parseError") from None
    if not isinstance(parsed, dict):
        raise bad_request("The body must be a JSON object", reason="parseError")
    return parsed


def preconditions(query: Mapping[str, str], source: bool = False) -> Preconditions:
    """Return the preconditions of a query.

    :param source: those of the source (``ifSourceGenerationMatch`` …).
    """
    # In any case: google-cloud-storage 3.17 writes ifMetaGenerationNotMatch in multipart uploads,
    # and a precondition that is overlooked overwrites.
    asked = {key.lower(): value for key, value in query.items()}
    prefix = "ifsource" if source else "if"
    return Preconditions(
        generation_match=integer(asked, f"{prefix}generationmatch"),
        generation_not_match=integer(asked, f"{prefix}generationnotmatch"),
        metageneration_match=integer(asked, f"{prefix}metagenerationmatch"),
        metageneration_not_match=integer(asked, f"{prefix}metagenerationnotmatch"),
    )


def integer(query: Mapping[str, str], name: str) -> int | None:
    """Return an int64 of the query, or None.

    :raises ApiError: 400.
    """
    text = query.get(name)
    if text is None or text == "":
        return None
    try:
        value = int(text)
    except ValueError:
        value = 2**63
    if not -(2**63) <= value < 2**63:
        raise bad_request(f"Invalid value for {name}: {text!r} is not an integer")
    return value


def flag(query: Mapping[str, str], name: str) -> bool:
    """Return a boolean of the query; False where it is missing."""
    return query.get(name, "").lower() in ("true", "1")


def writable(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an object's resource sets, checked.

    :raises ApiError: 400.
    """
    return _checked({key: resource[key] for key in WRITABLE if resource.get(key) is not None})


def patched(present: Mapping[str, Any], resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes after a PATCH: null removes, metadata merges key by key.

    :raises ApiError: 400.
    """
    return _checked(merge_patch(present, {k: v for k, v in resource.items() if k in WRITABLE}))


def merge_patch(present: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a JSON merge patch (RFC 7396)."""
    result = dict(present)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            old = result.get(key)
            result[key] = merge_patch(old if isinstance(old, dict) else {}, value)
        else:
            result[key] = value
    return result


def _checked(attributes: dict[str, Any]) -> dict[str, Any]:
    metadata = attributes.get("metadata", {})
    if not isinstance(metadata, dict):
        raise bad_request("metadata must be a map of strings")
    metadata = {key: value for key, value in metadata.items() if value is not None}
    if not all(isinstance(value, str) for value in metadata.values()):
        raise bad_request("metadata must be a map of strings")
    if metadata:
        attributes["metadata"] = metadata
    else:
        attributes.pop("metadata", None)
    for key in ("contentType", "contentEncoding", "contentDisposition", "contentLanguage",
                "cacheControl"):  # fmt: skip
        value = attributes.get(key)
        if value is not None and (not isinstance(value, str) or not value.isprintable()):
            raise bad_request(f"{key} must be text of one line")
    return attributes


def bucket_fields(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a bucket's resource sets, nulls included (a patch removes by them).

    :raises ApiError: 400; 501 for object versioning, which isn't kept here.
    """
    labels = resource.get("labels")
    if labels is not None and not isinstance(labels, dict):
        raise bad_request("labels must be a map of strings")
    return {key: value for key, value in resource.items() if key not in _BUCKET_READ_ONLY}


def check_object_name(name: object) -> str:
    """Return a legal object name.

    :raises ApiError: 400. Source: Cloud Storage documentation, "Object name requirements".
    """
    if not isinstance(name, str) or not name:
        raise bad_request("Required parameter: name", reason="required")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise bad_request("The object's name is not valid Unicode") from None
    if size > 1024:
        raise bad_request(f"The object's name has {size} bytes; 1024 are allowed")
    if (
        name in (".", "..")
        or "\n" in name
        or "\r" in name
        or name.startswith(".well-known/acme-challenge/")
    ):
        raise bad_request(f"Invalid object name: {name!r}")
    return name


def given_hashes(
    resource: Mapping[str, Any], headers: Iterable[str]
) -> tuple[str | None, str | None]:
    """Return MD5 and CRC32C as the client gives them, base64.

    :param headers: values of ``x-goog-hash``: ``crc32c=…,md5=…``.
    :raises ApiError: 400.
    """
    found = {"md5": resource.get("md5Hash"), "crc32c": resource.get("crc32c")}
    for value in headers:
        for item in value.split(","):
            kind, _, digest = item.strip().partition("=")
            if kind in found and digest:
                found[kind] = digest
    for kind, length in (("md5", 16), ("crc32c", 4)):
        given = found[kind]
        if given is None:
            continue
        try:
            size = len(base64.b64decode(str(given), validate=True))
        except (binascii.Error, ValueError):
            size = -1
        if size != length:
            raise bad_request(f"Invalid {kind}: {given!r} is not base64 of {length} bytes")
    return found["md5"], found["crc32c"]
