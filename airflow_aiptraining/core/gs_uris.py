"""What a Cloud Storage address must look like.

Source of the bucket rules: https://cloud.google.com/storage/docs/buckets#naming, as gcloud checks
them before it uploads.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_BUCKET = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?\Z")
_DOTTED_DECIMAL = re.compile(r"\d{1,3}(\.\d{1,3}){3}\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LONGEST_OBJECT_NAME = 1024


class GsUri(NamedTuple):
    """A bucket and the name after it.

    :param bucket: never empty.
    :param name: object name or prefix, without a slash in front; empty for the bucket itself.
    """

    bucket: str
    name: str


def parse_gs_uri(uri: str) -> GsUri:
    """Return the parts of ``gs://bucket`` or ``gs://bucket/name``.

    :raises ValueError: the address can't exist; the text says why.
    """
    if not uri.startswith("gs://"):
        raise ValueError(f"{uri!r} is not a Cloud Storage path; it must begin with gs://")
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    problem = bucket_problem(bucket)
    if problem:
        raise ValueError(f"{uri!r} names no legal bucket: {problem}")
    if _CONTROL.search(name):
        raise ValueError(f"{uri!r} has a line break or another control character")
    if len(name.encode()) > _LONGEST_OBJECT_NAME:
        raise ValueError(f"the name after the bucket has more than {_LONGEST_OBJECT_NAME} bytes")
    return GsUri(bucket, name)


def bucket_problem(bucket: str) -> str:
    """Return why no bucket can have this name, or an empty string."""
    if not bucket:
        return "the bucket's name is missing"
    longest = 222 if "." in bucket else 63
    if not 3 <= len(bucket) <= longest:
        return f"{bucket!r} has {len(bucket)} characters, 3 to {longest} are allowed"
    if not _BUCKET.match(bucket):
        return (
            f"{bucket!r} may have only a-z, 0-9, '-', '_' and '.', and begins and ends with a "
            "letter or digit"
        )
    if any(not 1 <= len(label) <= 63 for label in bucket.split(".")):
        return f"each part of {bucket!r} between dots must have 1 to 63 characters"
    if _DOTTED_DECIMAL.match(bucket):
        return f"{bucket!r} looks like an IP address"
    return ""
