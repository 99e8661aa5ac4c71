"""Buckets and objects with generations and preconditions, durable over kill -9.

Order of a write: bytes synced under their final name, then one transaction that checks the
preconditions and puts the row.  Killed between the two, the bytes are swept at the next start.  An
overwrite replaces (no versioning): the old generation is gone, as in a bucket without versioning.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from airflow_aiptraining.local import errors
from airflow_aiptraining.local.object_database import ObjectDatabase
from airflow_aiptraining.local.object_files import ObjectFiles, Spool
from airflow_aiptraining.local.object_listing import Page, Query, list_page

READ_ONLY_LABEL = "aiptraining-read-only"
"""Bucket label that, set to ``true``, makes every write to its objects answer 403.

Lets a DAG's author try what happens where the real service account may only read.
"""

_OBJECT_COLUMNS = (
    "bucket, name, generation, metageneration, size, md5, crc32c, blob, component_count, "
    "created, updated, attributes"
)


@dataclass(frozen=True)
class Bucket:
    """A bucket.

    :param resource: the fields that clients set (labels, location, storageClass …).
    """

    name: str
    project: str
    metageneration: int
    created: datetime
    updated: datetime
    resource: Mapping[str, Any]

    @property
    def is_read_only(self) -> bool:
        """Whether its label forbids writes."""
        return (self.resource.get("labels") or {}).get(READ_ONLY_LABEL) == "true"


@dataclass(frozen=True)
class StoredObject:
    """One generation of an object.

    :param md5: base64 as in the API; None for composed objects, which have none there either.
    :param crc32c: base64 as in the API.
    :param path: file of the bytes. Gone once the object is overwritten or deleted: open it at
        once, or use ``ObjectStore.open``.
    :param blob: id of that file.
    :param attributes: the fields that clients set (contentType, metadata …).
    """

    bucket: str
    name: str
    generation: int
    metageneration: int
    size: int
    md5: str | None
    crc32c: str
    component_count: int | None
    created: datetime
    updated: datetime
    attributes: Mapping[str, Any]
    blob: str
    path: Path


@dataclass(frozen=True)
class Preconditions:
    """``ifGenerationMatch`` and its kin; None where not asked. Generation 0: no object."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    def require(self, current: StoredObject | Bucket | None) -> None:
        """Check all four before a write.

        :raises ApiError: 412 conditionNotMet.
        """
        self.require_match(current)
        if self.is_unmodified(current):
            raise errors.precondition_failed(
                "ifGenerationNotMatch or ifMetagenerationNotMatch names what is there"
            )

    def require_match(self, current: StoredObject | Bucket | None) -> None:
        """Check the two that must match.

        :raises ApiError: 412 conditionNotMet.
        """
        generation, metageneration = _versions(current)
        for asked, found, name in (
            (self.generation_match, generation, "ifGenerationMatch"),
            (self.metageneration_match, metageneration, "ifMetagenerationMatch"),
        ):
            if asked is not None and asked != found:
                raise errors.precondition_failed(f"{name}={asked}, found {found}")

    def is_unmodified(self, current: StoredObject | Bucket | None) -> bool:
        """Whether one of the two that must not match does (a read answers 304)."""
        generation, metageneration = _versions(current)
        return (
            self.generation_not_match is not None and self.generation_not_match == generation
        ) or (
            self.metageneration_not_match is not None
            and self.metageneration_not_match == metageneration
        )


def _versions(current: StoredObject | Bucket | None) -> tuple[int, int]:
    if current is None:
        return 0, 0
    generation = current.generation if isinstance(current, StoredObject) else 0
    return generation, current.metageneration


NO_CONDITIONS = Preconditions()


@dataclass(frozen=True)
class Arrival:
    """What a client says about bytes that it sends.

    :param md5, crc32c: base64 as given by the client, checked against what arrived.
    :param size: bytes announced.
    """

    attributes: Mapping[str, Any]
    preconditions: Preconditions = NO_CONDITIONS
    md5: str | None = None
    crc32c: str | None = None
    size: int | None = None

    def verify(self, spool: Spool) -> None:
        """Compare the client's words with what arrived.

        :raises ApiError: 400.
        """
        for asked, found, name in (
            (self.md5, spool.md5, "MD5 hash"),
            (self.crc32c, spool.crc32c, "CRC32C"),
        ):
            if asked is not None and asked != found:
                raise errors.bad_request(
                    f'Provided {name} "{asked}" doesn\'t match calculated {name} "{found}".'
                )
        if self.size is not None and self.size != spool.size:
            raise errors.bad_request(f"{self.size} bytes were announced, {spool.size} arrived.")


class ObjectStore:
    """All buckets and objects of one embedded service. Safe for threads; every call may block.

    :param root: its directory; made if missing. One process at a time.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.database = ObjectDatabase(root)
        self.files = ObjectFiles(root)
        with self.database.read() as db:
            self.files.sweep(
                {row["blob"] for row in db.execute("SELECT blob FROM objects")},
                {row["id"] for row in db.execute("SELECT id FROM uploads WHERE state = 'open'")},
            )

    def close(self) -> None:
        """Close files; the store can't be used afterwards."""
        self.database.close()

    # --- buckets ---------------------------------------------------------------------------------

    def create_bucket(
        self, name: str, project: str = "local", resource: Mapping[str, Any] | None = None
    ) -> Bucket:
        """Make a bucket.

        :raises ApiError: 409 if it exists.
        """
        now = _now()
        with self.database.write() as db:
            if _bucket(db, name) is not None:
                raise errors.storage_error(
                    409,
                    "conflict",
                    f"A bucket named {name} exists already. Use it, or another name.",
                )
            db.execute(
                "INSERT INTO buckets VALUES (?, ?, 1, ?, ?, ?)",
                (name, project, now, now, json.dumps(dict(resource or {}))),
            )
            return _existing_bucket(db, name)

    def get_bucket(self, name: str) -> Bucket | None:
        """Return a bucket, or None."""
        with self.database.read() as db:
            return _bucket(db, name)

    def list_buckets(self, project: str, prefix: str = "", start: str = "") -> Sequence[Bucket]:
        """Return a project's buckets by name.

        :param start: first name to return.
        """
        with self.database.read() as db:
            rows = db.execute(
                "SELECT * FROM buckets WHERE project = ? AND name >= ? ORDER BY name",
                (project, max(prefix, start)),
            ).fetchall()
        return [_bucket_of(row) for row in rows if row["name"].startswith(prefix)]

    def update_bucket(
        self,
        name: str,
        change: Callable[[dict[str, Any]], dict[str, Any]],
        preconditions: Preconditions = NO_CONDITIONS,
    ) -> Bucket:
        """Change a bucket's resource.

        :param change: gets the present fields, returns the new ones.
        """
        with self.database.write() as db:
            bucket = _existing_bucket(db, name)
            preconditions.require(bucket)
            db.execute(
                "UPDATE buckets SET resource = ?, metageneration = metageneration + 1, "
                "updated = ? WHERE name = ?",
                (json.dumps(change(dict(bucket.resource))), _now(), name),
            )
            return _existing_bucket(db, name)

    def delete_bucket(self, name: str, preconditions: Preconditions = NO_CONDITIONS) -> None:
        """Delete an empty bucket.

        :raises ApiError: 404, 412, or 409 if objects are left.
        """
        with self.database.write() as db:
            preconditions.require(_existing_bucket(db, name))
            if db.execute("SELECT 1 FROM objects WHERE bucket = ? LIMIT 1", (name,)).fetchone():
                raise errors.storage_error(
                    409, "conflict", f"The bucket {name} is not empty. Delete its objects first."
                )
            db.execute("DELETE FROM buckets WHERE name = ?", (name,))

    # --- reading objects -------------------------------------------------------------------------

    def get(self, bucket: str, name: str, generation: int | None = None) -> StoredObject | None:
        """Return an object, or None where it or its bucket isn't there.

        :param generation: the generation wanted; one that was overwritten isn't there.
        """
        with self.database.read() as db:
            return self._object(db, bucket, name, generation)

    def require(self, bucket: str, name: str, generation: int | None = None) -> StoredObject:
        """Return an object.

        :raises ApiError: 404, telling a missing bucket from a missing object.
        """
        with self.database.read() as db:
            return self._existing_object(db, bucket, name, generation)

    def open(
        self, bucket: str, name: str, generation: int | None = None
    ) -> tuple[StoredObject, BinaryIO]:
        """Return an object and its bytes, to be closed by the caller.

        :raises ApiError: 404.
        """
        while True:
            found = self.require(bucket, name, generation)
            try:
                return found, found.path.open("rb")
            except FileNotFoundError:
                # Overwritten between the two steps: look again. A row whose bytes are truly lost
                # (somebody removed the file) must not loop.
                if self.require(bucket, name, generation).blob == found.blob:
                    raise

    def list(self, bucket: str, prefix: str = "") -> Sequence[StoredObject]:
        """Return all objects of a bucket whose names begin so, by name.

        :raises ApiError: 404 if there is no such bucket.
        """
        found = []
        query = Query(prefix=prefix)
        while True:
            page = self.list_page(bucket, query)
            found += page.objects
            if page.next is None:
                return found
            query = Query(prefix=prefix, start=page.next)

    def list_page(self, bucket: str, query: Query) -> Page[StoredObject]:
        """Return one page of a bucket.

        :raises ApiError: 404 if there is no such bucket.
        """
        with self.database.read() as db:
            _existing_bucket(db, bucket)
            return list_page(db, bucket, query, _OBJECT_COLUMNS, self.object_of)

    # --- writing objects -------------------------------------------------------------------------

    def put_bytes(
        self,
        bucket: str,
        name: str,
        data: bytes,
        if_generation_match: int | None = None,
        content_type: str = "application/octet-stream",
    ) -> StoredObject:
        """Write a small object.

        :raises ApiError: 404, 412; 403 if the bucket is read-only.
        """
        spool = self.files.spool()
        try:
            spool.write(data)
            return self.put(
                bucket,
                name,
                spool,
                Arrival(
                    {"contentType": content_type},
                    Preconditions(generation_match=if_generation_match),
                ),
            )
        finally:
            spool.discard()

    def check_writable(self, bucket: str, name: str, preconditions: Preconditions) -> None:
        """Refuse early what ``put`` would refuse, before its bytes are sent.

        :raises ApiError: 404, 403, 412.
        """
        with self.database.read() as db:
            _writable_bucket(db, bucket, "create")
            preconditions.require(self._object(db, bucket, name))

    def put(
        self,
        bucket: str,
        name: str,
        spool: Spool,
        arrival: Arrival,
        *,
        component_count: int | None = None,
        also: Callable[[sqlite3.Connection, StoredObject], None] | None = None,
    ) -> StoredObject:
        """Make an object of bytes that have arrived.

        :param spool: the bytes; the caller discards it afterwards.
        :param component_count: for composed objects.
        :param also: done in the same transaction.
        :raises ApiError: 400 if they aren't what the client said, 404, 403, 412.
        """
        arrival.verify(spool)
        self.check_writable(bucket, name, arrival.preconditions)
        blob = self.files.keep(spool)
        try:
            with self.database.write() as db:
                _writable_bucket(db, bucket, "create")
                old = self._object(db, bucket, name)
                arrival.preconditions.require(old)
                md5 = spool.md5 if component_count is None else None
                content = (spool.size, md5, spool.crc32c, blob, component_count)
                stored = self._replace(db, bucket, name, content, arrival.attributes)
                if also is not None:
                    also(db, stored)
        except BaseException:
            self.files.remove(blob)
            raise
        if old is not None:
            self.files.remove(old.blob)
        return stored

    def delete(
        self,
        bucket: str,
        name: str,
        generation: int | None = None,
        preconditions: Preconditions = NO_CONDITIONS,
    ) -> None:
        """Delete an object.

        :raises ApiError: 404, 403, 412.
        """
        with self.database.write() as db:
            _writable_bucket(db, bucket, "delete")
            old = self._existing_object(db, bucket, name, generation)
            preconditions.require(old)
            db.execute("DELETE FROM objects WHERE bucket = ? AND name = ?", (bucket, name))
        self.files.remove(old.blob)

    def update(
        self,
        bucket: str,
        name: str,
        change: Callable[[dict[str, Any]], dict[str, Any]],
        generation: int | None = None,
        preconditions: Preconditions = NO_CONDITIONS,
    ) -> StoredObject:
        """Change what clients may set of an object; its metageneration goes up by one.

        :param change: gets the present attributes, returns the new ones.
        :raises ApiError: 404, 403, 412.
        """
        with self.database.write() as db:
            _writable_bucket(db, bucket, "update")
            old = self._existing_object(db, bucket, name, generation)
            preconditions.require(old)
            db.execute(
                "UPDATE objects SET attributes = ?, metageneration = metageneration + 1, "
                "updated = ? WHERE bucket = ? AND name = ?",
                (json.dumps(change(dict(old.attributes))), _now(), bucket, name),
            )
            return self._existing_object(db, bucket, name)

    def copy(
        self,
        source: StoredObject,
        bucket: str,
        name: str,
        *,
        attributes: Mapping[str, Any] | None = None,
        source_preconditions: Preconditions = NO_CONDITIONS,
        preconditions: Preconditions = NO_CONDITIONS,
        move: bool = False,
    ) -> StoredObject:
        """Copy exactly this generation of an object, in one step whatever its size.

        :param attributes: of the copy; None: the source's.
        :param move: delete the source in the same step.
        :raises ApiError: 404, 403, 412.
        """
        blob = ""
        try:
            with self.database.write() as db:
                _writable_bucket(db, bucket, "create")
                if move:
                    _writable_bucket(db, source.bucket, "delete")
                # Under the writers' lock, so the bytes can't go away before they are linked.
                present = self._existing_object(db, source.bucket, source.name, source.generation)
                source_preconditions.require(present)
                old = self._object(db, bucket, name)
                preconditions.require(old)
                blob = self.files.link(present.blob)
                content = (
                    present.size, present.md5, present.crc32c, blob, present.component_count
                )  # fmt: skip
                if move:
                    db.execute(
                        "DELETE FROM objects WHERE bucket = ? AND name = ?",
                        (source.bucket, source.name),
                    )
                kept = present.attributes if attributes is None else attributes
                stored = self._replace(db, bucket, name, content, kept)
        except BaseException:
            if blob:
                self.files.remove(blob)
            raise
        for gone in {old.blob if old else "", present.blob if move else ""} - {""}:
            self.files.remove(gone)
        return stored

    # --- rows ------------------------------------------------------------------------------------

    def object_of(self, row: sqlite3.Row | Mapping[str, Any]) -> StoredObject:
        """Return a row of ``objects`` as a value."""
        return StoredObject(
            bucket=row["bucket"],
            name=row["name"],
            generation=row["generation"],
            metageneration=row["metageneration"],
            size=row["size"],
            md5=row["md5"],
            crc32c=row["crc32c"],
            component_count=row["component_count"],
            created=datetime.fromisoformat(row["created"]),
            updated=datetime.fromisoformat(row["updated"]),
            attributes=json.loads(row["attributes"]),
            blob=row["blob"],
            path=self.files.path(row["blob"]),
        )

    def _object(
        self, db: sqlite3.Connection, bucket: str, name: str, generation: int | None = None
    ) -> StoredObject | None:
        row = db.execute(
            f"SELECT {_OBJECT_COLUMNS} FROM objects WHERE bucket = ? AND name = ?",  # noqa: S608 - constant
            (bucket, name),
        ).fetchone()
        if row is None or generation not in (None, row["generation"]):
            return None
        return self.object_of(row)

    def _existing_object(
        self, db: sqlite3.Connection, bucket: str, name: str, generation: int | None = None
    ) -> StoredObject:
        found = self._object(db, bucket, name, generation)
        if found is None:
            _existing_bucket(db, bucket)
            raise errors.object_not_found(bucket, name, generation)
        return found

    def _replace(
        self,
        db: sqlite3.Connection,
        bucket: str,
        name: str,
        content: tuple[int, str | None, str, str, int | None],
        attributes: Mapping[str, Any],
    ) -> StoredObject:
        now = _now()
        db.execute(
            f"INSERT OR REPLACE INTO objects ({_OBJECT_COLUMNS}) "  # noqa: S608 - constant
            "VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?)",
            (bucket, name, _next_generation(db), *content, now, now, json.dumps(dict(attributes))),
        )
        return self._existing_object(db, bucket, name)


def _next_generation(db: sqlite3.Connection) -> int:
    """Microseconds as in Cloud Storage, but never the same or less, whatever the clock does."""
    db.execute("UPDATE counter SET last = max(last + 1, ?)", (time.time_ns() // 1000,))
    (last,) = db.execute("SELECT last FROM counter").fetchone()
    return int(last)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _bucket_of(row: sqlite3.Row) -> Bucket:
    return Bucket(
        name=row["name"],
        project=row["project"],
        metageneration=row["metageneration"],
        created=datetime.fromisoformat(row["created"]),
        updated=datetime.fromisoformat(row["updated"]),
        resource=json.loads(row["resource"]),
    )


def _bucket(db: sqlite3.Connection, name: str) -> Bucket | None:
    row = db.execute("SELECT * FROM buckets WHERE name = ?", (name,)).fetchone()
    return _bucket_of(row) if row is not None else None


def _existing_bucket(db: sqlite3.Connection, name: str) -> Bucket:
    bucket = _bucket(db, name)
    if bucket is None:
        raise errors.bucket_not_found(name)
    return bucket


def _writable_bucket(db: sqlite3.Connection, name: str, action: str) -> Bucket:
    bucket = _existing_bucket(db, name)
    if bucket.is_read_only:
        raise errors.storage_error(
            403,
            "forbidden",
            f"Permission 'storage.objects.{action}' denied on bucket {name}: it is labelled "
            f"{READ_ONLY_LABEL}=true. Remove the label to allow writes.",
        )
    return bucket
