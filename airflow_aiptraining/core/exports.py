"""What an export writes: a manifest for each version, and the pointer to the latest one.

Both are JSON and hold no time of writing, so that the same export writes the same bytes again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_aiptraining.core.gates import parse_time

FORMAT = 1
MANIFEST = "manifest.json"
POINTER = "latest.json"

#: What makes a version: two manifests that agree on it are the same export.
_IDENTITY = ("job_id", "project_id", "source_uri", "files")


def manifest(
    verdict: Mapping[str, Any], files: list[dict[str, Any]], model_uri: str
) -> dict[str, Any]:
    """Return the manifest of an exported version.

    :param verdict: the gate's, see :func:`airflow_aiptraining.core.gates.check_verdict`.
    :param files: ``{"name", "size", "crc32c", "source_generation"}`` of each, names relative to
        ``model_uri``.
    :param model_uri: where the version lies, ending in ``/``.
    """
    taken = ("job_id", "project_id", "create_time", "logical_date", "attempt", "spec", "metrics")
    return {
        "format": FORMAT,
        "model_uri": model_uri,
        "source_uri": verdict["model_uri"],
        "files": files,
        **{key: verdict.get(key) for key in taken},
    }


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Tell in what two manifests aren't of the same export; nothing if they are."""
    different = [
        f"{key} is {found.get(key)!r}, not {wanted.get(key)!r}"
        for key in _IDENTITY
        if key != "files" and found.get(key) != wanted.get(key)
    ]
    there, here = _by_name(found), _by_name(wanted)
    different += [f"{name} is not in this model" for name in sorted(there.keys() - here.keys())]
    different += [f"{name} is not in that export" for name in sorted(here.keys() - there.keys())]
    different += [
        f"{name} has other contents"
        for name in sorted(there.keys() & here.keys())
        if there[name].get("size") != here[name].get("size")
        # A verdict that was made by hand may lack it.
        or (here[name].get("crc32c") and there[name].get("crc32c") != here[name]["crc32c"])
    ]
    return different


def _by_name(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    files = manifest.get("files")
    return {part["name"]: part for part in files} if isinstance(files, list) else {}


def pointer(manifest: Mapping[str, Any], manifest_uri: str) -> dict[str, Any]:
    """Return the pointer to an exported version."""
    taken = ("job_id", "project_id", "model_uri", "create_time", "logical_date", "attempt")
    return {
        "format": FORMAT,
        "manifest_uri": manifest_uri,
        **{key: manifest.get(key) for key in taken},
    }


def order(version: Mapping[str, Any]) -> tuple[float, int, float, str]:
    """Return where a version stands among others; the greatest is the latest.

    By the date that it was trained for, then the attempt.  A job trained by hand has no such date:
    it stands where it was created.  What is left (two jobs for one date) goes by creation and id.

    :param version: a manifest or a pointer.
    :raises ValueError: its times or attempt can't be read.
    """
    try:
        created = parse_time(version["create_time"])
        date = version.get("logical_date")
        dated = parse_time(date) if date else created
        return (
            dated.timestamp(),
            int(version.get("attempt") or 1),
            created.timestamp(),
            str(version["job_id"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no create_time, logical_date or attempt in it ({error!r})") from None


def to_bytes(document: Mapping[str, Any]) -> bytes:
    """Return a document as the bytes that are stored."""
    return (json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def from_bytes(data: bytes) -> dict[str, Any]:
    """Read a stored manifest or pointer.

    :raises ValueError: it is none, or a later version of this package wrote it in another format.
    """
    document = json.loads(data.decode())
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"not a document of format {FORMAT}")
    return document
