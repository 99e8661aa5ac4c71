"""The jobs of the embedded service, on disk, and the only way their states change.

sqlite in WAL mode with ``synchronous=FULL``: what a client was told survives kill -9 and a power
cut.  Every transition is one transaction that checks where the job stands, so of two that race
(a cancel, the trainer's end) one wins and the other is told.

States, source: ML v1 discovery, revision 20251213, and the service's documentation::

    QUEUED ──> PREPARING ──> RUNNING ──> SUCCEEDED | FAILED
       │           │            │
       ├───────────┴────────────┴──> CANCELLING ──> CANCELLED
       └─ PREPARING ──> FAILED
"""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_aiptraining.core.states import JobState

LEGAL: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.PREPARING, JobState.FAILED, JobState.CANCELLING}),
    JobState.PREPARING: frozenset({JobState.RUNNING, JobState.FAILED, JobState.CANCELLING}),
    JobState.RUNNING: frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLING}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED}),
}
"""Which states may follow which; end states have no followers."""

UNFINISHED = frozenset(LEGAL)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    number        INTEGER PRIMARY KEY AUTOINCREMENT,
    uid           TEXT NOT NULL UNIQUE,
    project       TEXT NOT NULL,
    job_id        TEXT NOT NULL,
    state         TEXT NOT NULL,
    priority      INTEGER NOT NULL,
    labels        TEXT NOT NULL,
    label_version INTEGER NOT NULL DEFAULT 1,
    input         TEXT NOT NULL,
    output        TEXT NOT NULL DEFAULT '{}',
    error_message TEXT NOT NULL DEFAULT '',
    create_time   REAL NOT NULL,
    start_time    REAL,
    end_time      REAL,
    UNIQUE (project, job_id)
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, priority DESC, number);
CREATE TABLE IF NOT EXISTS replicas (
    uid      TEXT PRIMARY KEY,
    job_uid  TEXT NOT NULL REFERENCES jobs (uid),
    role     TEXT NOT NULL,
    position INTEGER NOT NULL,
    trial    TEXT NOT NULL DEFAULT '',
    attempt  INTEGER NOT NULL DEFAULT 1,
    exit     TEXT,
    address  TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS replicas_by_job ON replicas (job_uid);
"""
_REPLICA_COLUMNS = "PRAGMA table_info(replicas)"


class JobExistsAlreadyError(Exception):
    """The project has a job of this id; ids are never free again."""


class IllegalTransitionError(Exception):
    """The job isn't in a state from which it may get there.

    :param state: where it is.
    """

    def __init__(self, job_id: str, state: JobState, to: JobState) -> None:
        super().__init__(f"Job {job_id} is {state}, from where it can't become {to}.")
        self.state = state


@dataclass(frozen=True)
class Job:
    """One job as it stands in the store.

    :param number: grows with creation; older jobs have smaller ones.
    :param uid: names the job's folders; never a client's words.
    :param input: ``trainingInput``.
    :param output: ``trainingOutput``.
    :param create_time: seconds since the epoch, as are the others.
    """

    number: int
    uid: str
    project: str
    job_id: str
    state: JobState
    priority: int
    labels: dict[str, str]
    label_version: int
    input: dict[str, Any]
    output: dict[str, Any]
    error_message: str
    create_time: float
    start_time: float | None
    end_time: float | None

    @property
    def etag(self) -> str:
        """Return base64 that changes with the labels, the only thing a client can change."""
        digest = hashlib.sha256(f"{self.uid}/{self.label_version}".encode()).digest()
        return base64.b64encode(digest[:8]).decode()


@dataclass(frozen=True)
class Replica:
    """One process of a job.

    :param role: ``master``, ``worker``, ``ps`` or ``evaluator``.
    :param position: its number within the role, from 0.
    :param trial: trial id of a tuning job, else empty.
    :param attempt: 1, and more for each restart of the same replica.
    :param address: ``host:port`` that the others know it by; empty where they don't.
    """

    uid: str
    job_uid: str
    role: str
    position: int
    trial: str = ""
    attempt: int = 1
    address: str = ""
    exit: dict[str, Any] | None = field(default=None, compare=False)

    @property
    def task_name(self) -> str:
        """Return the API's name of it, e.g. ``master-replica-0``."""
        return f"{self.role}-replica-{self.position}"


class JobStore:
    """All jobs of one data folder.  For one thread: that of the event loop.

    :param path: the sqlite file.
    """

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("PRAGMA foreign_keys=ON")
        self._db.executescript(_SCHEMA)
        if "address" not in {row["name"] for row in self._db.execute(_REPLICA_COLUMNS)}:
            # A folder of a version whose jobs had one replica.
            self._db.execute("ALTER TABLE replicas ADD COLUMN address TEXT NOT NULL DEFAULT ''")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def create(
        self,
        project: str,
        job_id: str,
        *,
        labels: Mapping[str, str],
        training_input: Mapping[str, Any],
        priority: int = 0,
    ) -> Job:
        """Add a job, QUEUED.

        :raises JobExistsAlreadyError: the project has one of this id.
        """
        try:
            with self._transaction():
                self._db.execute(
                    "INSERT INTO jobs (uid, project, job_id, state, priority, labels, input,"
                    " create_time) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        uuid.uuid4().hex,
                        project,
                        job_id,
                        JobState.QUEUED.value,
                        priority,
                        json.dumps(dict(labels)),
                        json.dumps(dict(training_input)),
                        time.time(),
                    ),
                )
        except sqlite3.IntegrityError as error:
            raise JobExistsAlreadyError(job_id) from error
        job = self.get(project, job_id)
        assert job is not None
        return job

    def get(self, project: str, job_id: str) -> Job | None:
        """Return the job of this id."""
        return self._one("project = ? AND job_id = ?", project, job_id)

    def get_by_uid(self, uid: str) -> Job:
        """Return the job of this uid, which must exist."""
        job = self._one("uid = ?", uid)
        if job is None:
            raise KeyError(uid)
        return job

    def search(
        self,
        project: str,
        *,
        states: Collection[str] | None = None,
        job_ids: Collection[str] | None = None,
        before: int | None = None,
    ) -> Iterator[Job]:
        """Give the jobs of a project, newest first.

        :param states: only these.
        :param job_ids: only these.
        :param before: only jobs whose number is smaller.
        """
        where, values = ["project = ?"], [project]
        for column, wanted in (("state", states), ("job_id", job_ids)):
            if wanted is not None:
                # The places, never the values, are put into the text.
                where.append(f"{column} IN ({', '.join('?' * len(wanted))})")
                values += sorted(wanted)
        if before is not None:
            where.append("number < ?")
            values.append(str(before))
        query = f"SELECT * FROM jobs WHERE {' AND '.join(where)} ORDER BY number DESC"  # noqa: S608
        for row in self._db.execute(query, values):
            yield _job(row)

    def in_states(self, *states: JobState, limit: int = -1) -> list[Job]:
        """Return all projects' jobs in these states, in the order in which they are to run.

        :param limit: so many at most; -1: all.
        """
        places = ", ".join("?" * len(states))
        rows = self._db.execute(
            f"SELECT * FROM jobs WHERE state IN ({places})"  # noqa: S608 - only the places
            " ORDER BY priority DESC, number LIMIT ?",
            [*(state.value for state in states), limit],
        )
        return [_job(row) for row in rows]

    def position(self, job: Job) -> int:
        """Return how many queued jobs, this one included, are to run before it is done waiting."""
        (count,) = self._db.execute(
            "SELECT count(*) FROM jobs WHERE state = ?"
            " AND (priority > ? OR (priority = ? AND number <= ?))",
            (JobState.QUEUED.value, job.priority, job.priority, job.number),
        ).fetchone()
        return int(count)

    def advance(
        self,
        uid: str,
        to: JobState,
        *,
        error_message: str | None = None,
        output: Mapping[str, Any] | None = None,
    ) -> Job:
        """Move a job to its next state, in one transaction.

        RUNNING sets the start time, end states set the end time.

        :param error_message: set on FAILED and CANCELLING; CANCELLED keeps it.
        :param output: merged into ``trainingOutput``.
        :raises IllegalTransitionError: it isn't where it could get there from.
        """
        with self._transaction():
            job = self.get_by_uid(uid)
            if to not in LEGAL.get(job.state, ()):
                raise IllegalTransitionError(job.job_id, job.state, to)
            now = time.time()
            self._db.execute(
                "UPDATE jobs SET state = ?, error_message = coalesce(?, error_message), output = ?,"
                " start_time = coalesce(start_time, ?), end_time = ? WHERE uid = ?",
                (
                    to.value,
                    error_message,
                    json.dumps({**job.output, **(output or {})}),
                    now if to == JobState.RUNNING else None,
                    now if to.is_terminal else None,
                    uid,
                ),
            )
        return self.get_by_uid(uid)

    def set_labels(self, uid: str, labels: Mapping[str, str], *, etag: str | None = None) -> Job:
        """Replace all labels of a job.

        :param etag: the etag that the job must have; None: any.
        :raises StaleEtagError: it has another.
        """
        with self._transaction():
            job = self.get_by_uid(uid)
            if etag is not None and etag != job.etag:
                raise StaleEtagError(job.etag)
            self._db.execute(
                "UPDATE jobs SET labels = ?, label_version = label_version + 1 WHERE uid = ?",
                (json.dumps(dict(labels)), uid),
            )
        return self.get_by_uid(uid)

    def add_replicas(self, replicas: Collection[Replica]) -> None:
        """Write down processes before they are started, all or none."""
        with self._transaction():
            self._db.executemany(
                "INSERT INTO replicas (uid, job_uid, role, position, trial, attempt, address)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (r.uid, r.job_uid, r.role, r.position, r.trial, r.attempt, r.address)
                    for r in replicas
                ],
            )

    def replicas(self, job_uid: str) -> list[Replica]:
        """Return the processes of a job in the order in which they were written down."""
        rows = self._db.execute(
            "SELECT * FROM replicas WHERE job_uid = ? ORDER BY rowid", (job_uid,)
        )
        return [
            Replica(
                uid=row["uid"],
                job_uid=row["job_uid"],
                role=row["role"],
                position=row["position"],
                trial=row["trial"],
                attempt=row["attempt"],
                address=row["address"],
                exit=json.loads(row["exit"]) if row["exit"] else None,
            )
            for row in rows
        ]

    def ports(self) -> set[int]:
        """Return the ports of all unfinished jobs' replicas."""
        places = ", ".join("?" * len(UNFINISHED))
        rows = self._db.execute(
            "SELECT address FROM jobs JOIN replicas ON job_uid = jobs.uid"  # noqa: S608 - places
            f" WHERE address != '' AND state IN ({places})",
            [state.value for state in UNFINISHED],
        )
        return {int(row["address"].rpartition(":")[2]) for row in rows}

    def set_exit(self, replica_uid: str, result: Mapping[str, Any]) -> None:
        """Write down how a process ended."""
        with self._transaction():
            self._db.execute(
                "UPDATE replicas SET exit = ? WHERE uid = ?",
                (json.dumps(dict(result)), replica_uid),
            )

    def _one(self, where: str, *values: str) -> Job | None:
        row = self._db.execute(f"SELECT * FROM jobs WHERE {where}", values).fetchone()  # noqa: S608
        return _job(row) if row else None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


class StaleEtagError(Exception):
    """The job was changed since the client read it."""


def _job(row: sqlite3.Row) -> Job:
    values = dict(row)
    for name in ("labels", "input", "output"):
        values[name] = json.loads(values[name])
    return Job(**{**values, "state": JobState(values["state"])})
