"""Objects in Cloud Storage, by generation: what the gate looks at and the export writes.

Plain functions over Google's client, which the hook makes.  Every call has a timeout and is
repeated by Google's own retry for at most :data:`PATIENCE` seconds; what is left is raised as this
package's errors.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY

from airflow_aiptraining.core.gates import ModelObject
from airflow_aiptraining.exceptions import (
    AIPTrainingError,
    PermissionDeniedError,
    StagingError,
    TransientServiceError,
)

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Client

#: Seconds to connect, and between two bytes of an answer.
TIMEOUT = (10.0, 60.0)
#: Seconds for which one call is repeated while storage doesn't answer.
PATIENCE = 60.0
#: A folder with more objects than this isn't a model's.
MAX_LISTED = 20_000

_FIELDS = "items(name,generation,size,timeCreated,crc32c),nextPageToken"
_GZIP = b"\x1f\x8b"
_retry: Any = DEFAULT_RETRY.with_timeout(PATIENCE)
_calls: dict[str, Any] = {"timeout": TIMEOUT, "retry": _retry}


class ObjectGoneError(StagingError):
    """There is no such object, no such generation of it, or no such bucket."""


class ObjectPath(NamedTuple):
    """A bucket and a name in it; for a folder the name is empty or ends in ``/``."""

    bucket: str
    name: str

    def __str__(self) -> str:
        return f"gs://{self.bucket}/{self.name}"

    def at(self, name: str) -> ObjectPath:
        """Return the object ``name`` within this folder."""
        return ObjectPath(self.bucket, self.name + name)


def parse_uri(uri: str, what: str) -> ObjectPath:
    """Read ``gs://bucket/name``.

    :param what: which argument or field it is, for the message.
    :raises StagingError: it isn't such a URI.
    """
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    if not uri.startswith("gs://") or not bucket:
        raise StagingError(f"{what} is {uri!r}; it must be gs://BUCKET/PATH.")
    return ObjectPath(bucket, name)


def parse_folder(uri: str, what: str) -> ObjectPath:
    """Read the URI of a folder, with or without its final ``/``; see :func:`parse_uri`."""
    path = parse_uri(uri, what)
    name = path.name.rstrip("/")
    return ObjectPath(path.bucket, f"{name}/" if name else "")


def list_objects(client: Client, folder: ObjectPath, limit: int = MAX_LISTED) -> list[ModelObject]:
    """Return the live objects below a folder, their names relative to it.

    :raises StagingError: there are more than ``limit``, or the bucket doesn't exist.
    """
    with _told(f"Listing {folder}"):
        blobs = client.list_blobs(
            folder.bucket, prefix=folder.name, max_results=limit + 1, fields=_FIELDS, **_calls
        )
        found = [_object(blob).under(folder.name) for blob in blobs]
    if len(found) > limit:
        raise StagingError(
            f"{folder} holds more than {limit:,} objects; name the model's own folder with "
            "model_uri."
        )
    return found


def get_object(client: Client, path: ObjectPath) -> ModelObject | None:
    """Return the live generation of an object, or ``None`` where there is none."""
    with _told(f"Reading {path}"):
        blob = client.bucket(path.bucket).get_blob(path.name, **_calls)
    return None if blob is None else _object(blob)


def read_bytes(client: Client, path: ObjectPath, generation: int, limit: int) -> bytes:
    """Return the contents of one generation, unzipped if stored so; at most ``limit`` + 1 bytes.

    :raises ObjectGoneError: that generation is gone.
    """
    blob = client.bucket(path.bucket).blob(path.name, generation=generation)
    with _told(f"Reading {path} (generation {generation})"):
        try:
            data: bytes = blob.download_as_bytes(
                start=0, end=limit, raw_download=True, checksum=None, **_calls
            )
        except api.RequestRangeNotSatisfiable:
            return b""  # an empty object has no first byte
    if data.startswith(_GZIP):
        try:
            data = zlib.decompressobj(wbits=31).decompress(data, limit + 1)
        except zlib.error as error:
            raise StagingError(f"begins like gzip, but can't be unzipped ({error})") from None
    return data


def read_live(client: Client, path: ObjectPath, limit: int) -> tuple[bytes, int] | None:
    """Return an object's contents and the generation that they are of; ``None`` for no object.

    A small object that others replace meanwhile is read again.

    :raises TransientServiceError: it was replaced each time.
    """
    for _ in range(10):
        there = get_object(client, path)
        if there is None:
            return None
        try:
            return read_bytes(client, path, there.generation, limit), there.generation
        except ObjectGoneError:
            continue
    raise TransientServiceError(f"{path} is replaced faster than it can be read.")


def write_if_generation(
    client: Client, path: ObjectPath, data: bytes, generation: int
) -> int | None:
    """Write a JSON object over exactly one generation of it.

    :param generation: that must be live; 0 for "no object yet".
    :return: the new generation, or ``None`` where another one is live.  It may be ours, if an
        answer was lost: who needs to know reads it.
    """
    blob = client.bucket(path.bucket).blob(path.name)
    with _told(f"Writing {path}"):
        try:
            blob.upload_from_string(
                data, content_type="application/json", if_generation_match=generation, **_calls
            )
        except api.PreconditionFailed:
            return None
    return int(blob.generation)


def write_once(client: Client, path: ObjectPath, data: bytes) -> bool:
    """Write a JSON object where there is none; return whether it was written."""
    return write_if_generation(client, path, data, 0) is not None


def copy_generation(
    client: Client, source: ObjectPath, generation: int, target: ObjectPath
) -> ModelObject:
    """Copy one generation within Cloud Storage to where there is no object yet.

    :return: the target, be it written now or found there: compare its ``crc32c``.
    :raises ObjectGoneError: that generation is gone.
    """
    there = get_object(client, target)
    if there is not None:
        return there
    old = client.bucket(source.bucket).blob(source.name, generation=generation)
    with _told(f"Reading {source} (generation {generation}, which the gate saw)"):
        old.reload(**_calls)
    new = client.bucket(target.bucket).blob(target.name)
    # The client sends the new object's properties, and storage then takes no others over.
    new.content_type, new.content_encoding = old.content_type, old.content_encoding
    new.metadata = old.metadata
    with _told(f"Copying {source} (generation {generation}) to {target}"):
        token = None
        while True:
            try:
                token, _, _ = new.rewrite(old, token=token, if_generation_match=0, **_calls)
            except api.PreconditionFailed:
                break  # another export of the same job was faster, or an answer was lost
            if token is None:
                return _object(new)
    there = get_object(client, target)
    if there is None:
        raise TransientServiceError(f"{target} was there and is gone again while it was copied to.")
    return there


def _object(blob: Blob) -> ModelObject:
    return ModelObject(
        blob.name, int(blob.generation), int(blob.size), blob.time_created, blob.crc32c or ""
    )


@contextmanager
def _told(doing: str) -> Iterator[None]:
    """Raise what Google's client raises as this package's errors.

    :param doing: what was tried, e.g. ``Listing gs://bucket/folder/``.
    """
    try:
        yield
    except AIPTrainingError:
        raise
    except Exception as error:
        raise _translated(error, doing) from error


def _translated(error: Exception, doing: str) -> Exception:
    if isinstance(error, api.RetryError) and isinstance(error.cause, Exception):
        return _translated(error.cause, f"{doing} (asked for {PATIENCE:g} s)")
    if isinstance(error, auth.GoogleAuthError):
        if isinstance(error, auth.TransportError) or error.retryable:
            return TransientServiceError(f"{doing}: no access token for now: {error}")
        return PermissionDeniedError(
            f"{doing}: the connection's credentials were not accepted: {error}", status=401
        )
    if isinstance(error, (api.GoogleAPICallError, InvalidResponse)):
        return _of_answer(error, doing)
    # The last three: Google's client takes apart what is no answer of Cloud Storage's.
    no_answer = (DataCorruption, requests.RequestException, OSError, AttributeError, LookupError)
    if isinstance(error, (*no_answer, TypeError)):
        return TransientServiceError(f"{doing}: no good answer: {type(error).__name__}: {error}")
    return error


def _of_answer(error: Any, doing: str) -> Exception:
    refused = isinstance(error, InvalidResponse)
    status = int(error.response.status_code if refused else error.code or 0)
    reason = str(getattr(error, "message", error))[:2_000]
    told = f"{doing}: HTTP {status}: {reason}"
    if status in (408, 429) or status >= 500:
        return TransientServiceError(told, status=status, reason=reason)
    if status in (401, 403):
        return PermissionDeniedError(
            f"{told} Grant roles/storage.objectUser on the bucket to the connection's account.",
            status=status,
            reason=reason,
        )
    if status == 404:
        return ObjectGoneError(f"{doing}: it doesn't exist, or its bucket doesn't ({reason}).")
    return StagingError(told)
