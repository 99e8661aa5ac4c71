"""The sqlite file of the object store: schema, connections, transactions."""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from airflow_aiptraining.exceptions import StagingError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS buckets (
    name TEXT PRIMARY KEY,
    project TEXT NOT NULL,
    metageneration INTEGER NOT NULL,
    created TEXT NOT NULL,
    updated TEXT NOT NULL,
    resource TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS objects (
    bucket TEXT NOT NULL,
    name TEXT NOT NULL,
    generation INTEGER NOT NULL,
    metageneration INTEGER NOT NULL,
    size INTEGER NOT NULL,
    md5 TEXT,
    crc32c TEXT NOT NULL,
    blob TEXT NOT NULL,
    component_count INTEGER,
    created TEXT NOT NULL,
    updated TEXT NOT NULL,
    attributes TEXT NOT NULL,
    PRIMARY KEY (bucket, name)
);
CREATE TABLE IF NOT EXISTS uploads (
    id TEXT PRIMARY KEY,
    bucket TEXT NOT NULL,
    name TEXT NOT NULL,
    request TEXT NOT NULL,
    received INTEGER NOT NULL,
    state TEXT NOT NULL,
    result TEXT,
    created TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS counter (last INTEGER NOT NULL);
INSERT INTO counter SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM counter);
"""


class ObjectDatabase:
    """One sqlite file, a pool of connections, one writer at a time.

    :param root: directory of the store, which exists.
    :raises StagingError: another process has this store open: it would sweep our files.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "objects.db"
        self._lock_file = (root / "lock").open("w")
        try:
            # Released by the kernel when the process ends, kill -9 included.
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock_file.close()
            raise StagingError(
                f"{root} is in use by another embedded service. Stop that one, or choose "
                "another data directory."
            ) from None
        self._writing = threading.Lock()
        # Not one a thread: worker threads come and go, and would leave theirs behind.
        self._idle: deque[sqlite3.Connection] = deque()
        self._closed = False
        with self.read() as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(_SCHEMA)

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection, for this thread until the block ends."""
        try:
            db = self._idle.pop()
        except IndexError:
            if self._closed:
                raise RuntimeError("The object store is closed") from None
            db = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, timeout=30
            )
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA synchronous = FULL")
        try:
            yield db
        finally:
            if self._closed:
                db.close()
            else:
                self._idle.append(db)

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection inside a transaction; durable when the block ends without error.

        Writers wait for each other here, so a check and the change that rests on it are one step.
        """
        with self._writing, self.read() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def close(self) -> None:
        """Close all connections and let another process have the store."""
        with self._writing:
            self._closed = True
            while self._idle:
                self._idle.pop().close()
            self._lock_file.close()
