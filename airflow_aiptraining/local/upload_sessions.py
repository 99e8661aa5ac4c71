"""Resumable uploads that survive a restart.

A session is a row and a file.  The row's ``received`` is what was synced and acknowledged; after a
crash the file is cut back to it and the client goes on from there, as it would with the real
service.  A finished session keeps its answer for a week: a client that lost it asks again.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import threading
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_aiptraining.local import errors
from airflow_aiptraining.local.object_files import Spool
from airflow_aiptraining.local.object_store import (
    Arrival,
    ObjectStore,
    Preconditions,
    StoredObject,
)

_LIFETIME = timedelta(days=7)  # of a session, as in Cloud Storage


@dataclass(frozen=True)
class Session:
    """A resumable upload as it stands.

    :param received: bytes that are safe here.
    :param result: the object, once all bytes were there.
    """

    id: str
    bucket: str
    name: str
    arrival: Arrival
    received: int
    result: StoredObject | None


class UploadSessions:
    """All resumable uploads of a store. Safe for threads, one writer to a session at a time."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._spools: dict[str, Spool] = {}
        self._lock = threading.Lock()
        self._expire()

    def start(self, bucket: str, name: str, arrival: Arrival) -> Session:
        """Begin an upload.

        :raises ApiError: 404, 403, 412, as the finished upload would be answered now.
        """
        self._store.check_writable(bucket, name, arrival.preconditions)
        session = secrets.token_hex(24)
        with self._store.database.write() as db:
            db.execute(
                "INSERT INTO uploads VALUES (?, ?, ?, ?, 0, 'open', NULL, ?)",
                (
                    session,
                    bucket,
                    name,
                    json.dumps(asdict(arrival)),
                    datetime.now(UTC).isoformat(),
                ),
            )
        return self.find(session)

    def find(self, session: str) -> Session:
        """Return a session.

        :raises ApiError: 404.
        """
        with self._store.database.read() as db:
            row = db.execute("SELECT * FROM uploads WHERE id = ?", (session,)).fetchone()
        if row is None:
            raise errors.storage_error(
                404, "notFound", "No such upload session: it was cancelled, has expired, or failed."
            )
        request = json.loads(row["request"])
        request["preconditions"] = Preconditions(**request["preconditions"])
        result = json.loads(row["result"]) if row["result"] else None
        return Session(
            id=session,
            bucket=row["bucket"],
            name=row["name"],
            arrival=Arrival(**request),
            received=row["received"],
            result=self._store.object_of(result) if result else None,
        )

    def spool(self, session: Session) -> Spool:
        """Return the file that the session's bytes go to."""
        with self._lock:
            spool = self._spools.get(session.id)
        if spool is None:
            spool = Spool(self._store.files.upload_path(session.id), session.received)
            with self._lock:
                self._spools[session.id] = spool
        return spool

    def acknowledge(self, session: Session, spool: Spool) -> int:
        """Make the spool's bytes safe and return how many there are."""
        spool.pause()
        with self._store.database.write() as db:
            db.execute("UPDATE uploads SET received = ? WHERE id = ?", (spool.size, session.id))
        return spool.size

    def finish(self, session: Session, spool: Spool, arrival: Arrival) -> StoredObject:
        """Make the object of the bytes received.

        :param arrival: the session's, with what the last request added.
        :raises ApiError: 400, 403, 404, 412; the session is over then too.
        """

        def close(db: sqlite3.Connection, stored: StoredObject) -> None:
            db.execute(
                "UPDATE uploads SET state = 'done', received = ?, result = ? WHERE id = ?",
                (spool.size, json.dumps(_row_of(stored)), session.id),
            )

        try:
            stored = self._store.put(session.bucket, session.name, spool, arrival, also=close)
        except errors.ApiError:
            self.cancel(session)
            raise
        with self._lock:
            self._spools.pop(session.id, None)
        spool.discard()
        return stored

    def cancel(self, session: Session) -> None:
        """Forget a session and its bytes."""
        with self._store.database.write() as db:
            db.execute("DELETE FROM uploads WHERE id = ?", (session.id,))
        with self._lock:
            spool = self._spools.pop(session.id, None)
        (spool or Spool(self._store.files.upload_path(session.id))).discard()

    def _expire(self) -> None:
        """Drop old sessions, and those whose bytes somebody removed."""
        oldest = (datetime.now(UTC) - _LIFETIME).isoformat()
        with self._store.database.write() as db:
            expired = [
                row["id"]
                for row in db.execute("SELECT id, received, state, created FROM uploads")
                if row["created"] < oldest
                or (
                    row["state"] == "open"
                    and row["received"]
                    and not self._store.files.upload_path(row["id"]).exists()
                )
            ]
            db.executemany("DELETE FROM uploads WHERE id = ?", [(each,) for each in expired])
        for each in expired:
            self._store.files.upload_path(each).unlink(missing_ok=True)


def _row_of(stored: StoredObject) -> dict[str, Any]:
    """Return what ``ObjectStore.object_of`` reads."""
    row = {key: getattr(stored, key) for key in stored.__dataclass_fields__ if key != "path"}
    return row | {
        "created": stored.created.isoformat(),
        "updated": stored.updated.isoformat(),
        "attributes": json.dumps(dict(stored.attributes)),
    }
