"""The few calls on Cloud Storage that staging makes, with errors that name bucket and cure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_aiptraining.exceptions import (
    AIPTrainingError,
    StagingError,
    TransientServiceError,
)

if TYPE_CHECKING:
    from google.cloud.storage import Client

# Source: https://cloud.google.com/storage/docs/buckets#naming
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_MAX_PREFIX_BYTES = 512  # of the 1,024 of an object name; the rest is the hash and the file

RETRY_SECONDS = 120.0
"""So long a call is repeated while the service is away (5xx, 429, lost connections)."""

_ROLE = "roles/storage.objectUser (Storage Object User)"


def split_uri(staging: str) -> tuple[str, str]:
    """Return bucket and prefix (empty, or ending in ``/``) of a staging location.

    :raises StagingError: not ``gs://bucket`` or ``gs://bucket/prefix``.
    """
    matched = re.fullmatch(r"gs://([^/]*)(?:/(.*))?", staging, re.DOTALL)
    if matched is None:
        raise StagingError(
            f"Staging location {staging!r} is not in Cloud Storage. Give gs://bucket or"
            " gs://bucket/prefix: the operator's or connection's staging_bucket, or job_dir."
        )
    bucket, prefix = matched[1], (matched[2] or "").strip("/")
    if not _BUCKET.fullmatch(bucket):
        raise StagingError(
            f"Staging location {staging!r}: {bucket!r} is no bucket's name (3 to 63 lower-case"
            " letters, digits, '-', '_', '.')."
        )
    parts = prefix.split("/")
    if not prefix.isprintable() or ".." in parts or len(prefix.encode()) > _MAX_PREFIX_BYTES:
        raise StagingError(
            f"Staging location {staging!r}: the part after the bucket has '..', a control character"
            f" or more than {_MAX_PREFIX_BYTES} bytes."
        )
    return bucket, f"{prefix}/" if prefix else ""


def check_staging(staging: str, client: Client) -> None:
    """Check that a bucket exists and that objects may be created in it, leaving nothing there.

    Asks ``testIamPermissions``: unlike ``buckets.get`` it needs no permission itself, and unlike a
    probe object it starts no triggers and meets no retention policy. An endpoint that doesn't know
    that method is asked for the bucket only; then the upload itself will tell.

    :param staging: ``gs://bucket[/prefix]``; a job_dir will do.
    :raises StagingError: malformed, missing, or not writable.
    :raises TransientServiceError: the storage service doesn't answer; a retry may cure it.
    """
    from google.api_core import exceptions as api

    name, _ = split_uri(staging)
    bucket = client.bucket(name)
    needed = "storage.objects.create"
    with storage_errors(client, name, f"look at bucket {name!r}"):
        try:
            granted = bucket.test_iam_permissions([needed], retry=_retry())
        except (api.Forbidden, api.Unauthorized):
            return  # may not even ask
        except api.ClientError as error:
            if isinstance(error, api.TooManyRequests):
                raise
            if client.lookup_bucket(name, retry=_retry()) is None:
                raise _missing_bucket(name, client) from error
            return
        except api.MethodNotImplemented:
            if client.lookup_bucket(name, retry=_retry()) is None:
                raise _missing_bucket(name, client) from None
            return
    if needed not in granted:
        raise StagingError(
            f"Bucket {name!r} (project {client.project!r}) is not writable: permission {needed} is"
            f" not granted. Give the connection's account {_ROLE} on it, or stage elsewhere"
            " (staging_bucket)."
        )


def find_object(client: Client, bucket: str, name: str) -> Any:
    """Return an object's ``Blob`` with its metadata, None if there is none.

    :raises StagingError: may not be read. A missing bucket holds no objects.
    """
    with storage_errors(client, bucket, f"look at gs://{bucket}/{name}"):
        return client.bucket(bucket).get_blob(name, retry=_retry())


def list_folder(client: Client, bucket: str, prefix: str) -> list[Any]:
    """Return the ``Blob`` of every object whose name begins with ``prefix``.

    :raises StagingError: the bucket is missing or may not be listed.
    """
    with storage_errors(client, bucket, f"list gs://{bucket}/{prefix}"):
        return list(client.list_blobs(bucket, prefix=prefix, retry=_retry()))


def upload_once(
    client: Client, bucket: str, name: str, path: Path, metadata: Mapping[str, str]
) -> int | None:
    """Upload a file unless the object is there already; it is whole or not there at all.

    :return: the new object's generation, None if there was one (its first upload may also have
        been ours, with the answer lost).
    :raises StagingError: the bucket is missing or refuses.
    """
    from google.api_core.exceptions import PreconditionFailed

    blob = client.bucket(bucket).blob(name)
    blob.metadata = dict(metadata)
    kind = "application/x-tar" if name.endswith((".tar.gz", ".tgz")) else "application/octet-stream"
    with storage_errors(client, bucket, f"write gs://{bucket}/{name}"):
        try:
            blob.upload_from_filename(
                str(path),
                content_type=kind,
                if_generation_match=0,  # also what makes repeating it safe
                checksum="crc32c",
                retry=_retry(),
            )
        except PreconditionFailed:
            return None
    if blob.size != path.stat().st_size:
        raise StagingError(
            f"gs://{bucket}/{name} has {blob.size} bytes after an upload of {path.stat().st_size}."
            " Delete it and run the task again."
        )
    generation: int = blob.generation
    return generation


def download(client: Client, blob: Any, path: Path) -> None:
    """Fetch an object; its checksum is compared.

    :param blob: from :func:`find_object` or :func:`list_folder`.
    :raises StagingError: gone, or may not be read.
    """
    name = f"gs://{blob.bucket.name}/{blob.name}"
    with storage_errors(client, blob.bucket.name, f"read {name}"):
        blob.download_to_filename(str(path), retry=_retry())


def _retry() -> Any:
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY.with_timeout(RETRY_SECONDS)


@contextmanager
def storage_errors(client: Client, bucket: str, action: str) -> Iterator[None]:
    """Turn what Google's client raises into this package's errors.

    :param action: what was tried, to follow "could not".
    :raises StagingError: refused, or not there: no retry cures it.
    :raises TransientServiceError: no answer, or not now.
    """
    import requests
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth
    from google.cloud.storage.exceptions import DataCorruption

    try:
        yield
    except (api.TooManyRequests, api.ServerError, api.RetryError, DataCorruption) as error:
        status = int(getattr(error, "code", 0) or 0)
        raise TransientServiceError(
            f"Cloud Storage could not {action} now: {error}. Run the task again.",
            status=status,
            reason=str(error),
        ) from error
    except (requests.RequestException, auth.TransportError, ConnectionError, TimeoutError) as error:
        raise TransientServiceError(
            f"Cloud Storage didn't answer to: {action}: {error}. Run the task again.",
            reason=str(error),
        ) from error
    except (api.GoogleAPICallError, auth.GoogleAuthError) as error:
        raise _refused(client, bucket, action, error) from error


def _refused(client: Client, bucket: str, action: str, error: Exception) -> AIPTrainingError:
    from google.api_core import exceptions as api

    if isinstance(error, api.NotFound):
        return _missing_bucket(bucket, client)
    cure = f"Give the connection's account {_ROLE} on bucket {bucket!r}, or stage elsewhere."
    if isinstance(error, api.BadRequest | api.PreconditionFailed | api.Conflict):
        cure = "Look at the bucket's policies, or stage elsewhere (staging_bucket)."
    return StagingError(
        f"Could not {action} (project {client.project!r}): {getattr(error, 'message', error)}."
        f" {cure}"
    )


def _missing_bucket(name: str, client: Client) -> StagingError:
    endpoint = str(client._connection.API_BASE_URL)
    if endpoint.endswith("googleapis.com"):
        make = f"gcloud storage buckets create gs://{name}, in the job's region"
    else:
        # gcloud would make one at Google.
        make = (
            f"curl -H 'Content-Type: application/json' -d '{{\"name\": \"{name}\"}}' "
            f"'{endpoint}/storage/v1/b?project={client.project}'"
        )
    return StagingError(
        f"Bucket {name!r} doesn't exist (looked from project {client.project!r} at {endpoint}). "
        f"Make it ({make}), or mend the name."
    )
