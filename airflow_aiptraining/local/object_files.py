"""Bytes of objects on disk.

Files are named by random ids, so no object name ever is a path: ``..``, ``a//b``, ``model`` beside
``model/x`` and 1,024-byte names are just text in the database.  A file under ``blobs`` is never
changed after it got there; bytes arrive in ``uploads``, are synced, then linked into ``blobs``.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

import google_crc32c

_BLOCK = 1024 * 1024


class Spool:
    """Bytes on their way in: written to a file, counted and hashed as they come.

    Not for two threads at once.

    :param path: the file; continued where it exists.
    :param received: bytes of it that were acknowledged before; what lies beyond is cut off.
    """

    def __init__(self, path: Path, received: int = 0) -> None:
        self.path = path
        self.size = 0
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._crc32c = google_crc32c.Checksum()  # type: ignore[no-untyped-call]
        self._file: BinaryIO | None = None
        if received:
            with path.open("r+b") as file:
                file.truncate(received)
                while block := file.read(_BLOCK):
                    self._count(block)

    def write(self, data: bytes) -> None:
        """Append bytes; they survive a crash only after ``pause``."""
        if self._file is None:
            self._file = self.path.open("ab" if self.size else "wb")
        self._file.write(data)
        self._count(data)

    def pause(self) -> None:
        """Make what was written durable and close the file."""
        if self._file is None:
            if self.size:
                return
            self._file = self.path.open("wb")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None

    def discard(self) -> None:
        """Forget the bytes."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.path.unlink(missing_ok=True)

    @property
    def md5(self) -> str:
        """MD5 of all bytes, base64 as in the API."""
        return base64.b64encode(self._md5.digest()).decode()

    @property
    def crc32c(self) -> str:
        """CRC32C of all bytes, big-endian base64 as in the API."""
        return base64.b64encode(self._crc32c.digest()).decode()  # type: ignore[no-untyped-call]

    def _count(self, data: bytes) -> None:
        self.size += len(data)
        self._md5.update(data)
        self._crc32c.update(data)  # type: ignore[no-untyped-call]


class ObjectFiles:
    """The two directories of bytes.

    :param root: directory of the store; made if missing.
    """

    def __init__(self, root: Path) -> None:
        self._blobs = root / "blobs"
        self._uploads = root / "uploads"
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._uploads.mkdir(exist_ok=True)

    def spool(self) -> Spool:
        """Return an empty spool under a new name."""
        return Spool(self.upload_path(secrets.token_hex(16)))

    def upload_path(self, upload: str) -> Path:
        """Return the file of an unfinished upload.

        :param upload: an id made by this package, never a client's text.
        """
        return self._uploads / upload

    def path(self, blob: str) -> Path:
        """Return the file of a blob id."""
        return self._blobs / blob[:2] / blob

    def keep(self, spool: Spool) -> str:
        """Make a spool's bytes durable under a new blob id and return it.

        The spool keeps them too until it is discarded: killed before the row is there, a resumable
        upload still has all that it acknowledged.
        """
        spool.pause()
        blob, path = self._new_blob()
        _link(spool.path, path)
        return blob

    def link(self, blob: str) -> str:
        """Return a second blob id for the same bytes (no copying where links are possible)."""
        copy, path = self._new_blob()
        _link(self.path(blob), path)
        return copy

    def remove(self, blob: str) -> None:
        """Remove a blob that no row names; open readers keep reading."""
        self.path(blob).unlink(missing_ok=True)

    def sweep(self, blobs: Collection[str], uploads: Collection[str]) -> None:
        """Remove what a killed process left: bytes that never got their row, or lost it.

        :param blobs: ids that rows name.
        :param uploads: ids of unfinished uploads.
        """
        for file in self._blobs.glob("*/*"):
            if file.name not in blobs:
                file.unlink()
        for file in self._uploads.iterdir():
            if file.name not in uploads:
                file.unlink()

    def _new_blob(self) -> tuple[str, Path]:
        blob = secrets.token_hex(16)
        path = self.path(blob)
        if not path.parent.is_dir():
            with contextlib.suppress(FileExistsError):
                path.parent.mkdir()
            _sync_directory(self._blobs)
        return blob, path


def _link(source: Path, path: Path) -> None:
    """Give a file a second name, durably."""
    try:
        path.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links
        shutil.copyfile(source, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    """A new name is durable when its directory is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
