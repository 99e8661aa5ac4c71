"""Makes SQLite wait for its turn; copied to ``$AIRFLOW_HOME/config``, from where Airflow loads it.

SQLite has one writer at a time, and others wait (30 s here).  They can't wait if they have read in
the same transaction before: what they read may be out of date by then, so SQLite answers "database
is locked" at once.  Airflow does just that, it begins transactions by a savepoint.  So each
transaction that is going to write takes the write lock when it begins.
"""

from __future__ import annotations

from sqlalchemy import event
from sqlalchemy.engine import Engine

__all__: tuple[str, ...] = ()  # nothing here replaces a name of airflow.settings


@event.listens_for(Engine, "connect")
def _lock_at_the_first_change(dbapi_connection, _record) -> None:
    dbapi_connection.isolation_level = "IMMEDIATE"


@event.listens_for(Engine, "savepoint")
def _lock_before_a_savepoint(connection, _name) -> None:
    if not connection.connection.dbapi_connection.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
