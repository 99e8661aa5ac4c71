"""Makes SQLite wait for its turn; copied to ``$AIRFLOW_HOME/config``, from where Airflow loads it.

SQLite has one writer at a time, and others wait (30 s here).  They can't wait if they have read in
the same transaction before: what they read may be out of date by then, so SQLite answers "database
is locked" at once.  Airflow does just that, it begins transactions by a savepoint.  So each
transaction that is going to write takes the write lock when it begins.

The api-server writes its audit log on its event loop.  While that waits, no other request can end,
not even the one that has the lock: all stand still for the whole 30 s.  So on an event loop the
wait is short; the request fails with status 500, has done nothing, and can be sent again.
"""

from __future__ import annotations

import asyncio
import contextlib

from sqlalchemy import event
from sqlalchemy.engine import Engine

__all__: tuple[str, ...] = ()  # nothing here replaces a name of airflow.settings


@event.listens_for(Engine, "connect")
def _lock_at_the_first_change(dbapi_connection, _record) -> None:
    dbapi_connection.isolation_level = "IMMEDIATE"


@event.listens_for(Engine, "begin")
def _wait_shortly_on_an_event_loop(connection) -> None:
    if connection.dialect.is_async:
        return  # waits in a thread of its own
    milliseconds = 30_000
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        milliseconds = 500
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {milliseconds}")


@event.listens_for(Engine, "savepoint")
def _lock_before_a_savepoint(connection, _name) -> None:
    if not connection.connection.dbapi_connection.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
