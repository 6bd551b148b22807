"""Everything in a broker's database that needs the right to change the schema, done ahead.

A broker does all this itself if it may. `escapement migrate` does it with another user, so that the
broker's user needs SELECT, INSERT, UPDATE and DELETE only: the migrations of the schema, the views,
and table sets, which replace the tables that a broker would create for its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

from escapement.errors import MissingRight, StorageError
from escapement.storage import schema
from escapement.storage.catalog import views
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.mysql.errors import lacks_right
from escapement.storage.log import table_sets
from escapement.storage.log.table_sets import Plan


def upgrade(engine: Engine, plan: Plan, done: Callable[[str], None], *, dry_run: bool) -> None:
    """Bring the database up to date, while a broker may use it. Blocking.

    Two upgrades at once run one after the other. After a crash, run it again.

    Args:
      plan: the table sets that there should be.
      done: called with each SQL statement when it has run.
      dry_run: run no statement, and only report those that would run.

    Raises:
      SchemaError: if a newer program has changed the database.
      MissingRight: if the user lacks a right. The statements that were reported have run.
      StorageUnavailable: if the database cannot be reached, or another program changes the schema.
    """
    with closing(engine.connect()) as connection, schema.locked(engine, connection):
        try:
            for statement in _pending(engine, connection, plan):
                if not dry_run:
                    connection.execute(statement)
                done(statement)
        except StorageError as error:
            if not lacks_right(error):
                raise
            raise MissingRight(
                f"{error}. GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, CREATE VIEW"
                " ON this database TO the user that migrates"
            ) from error


def _pending(engine: Engine, connection: Connection, plan: Plan) -> Iterator[str]:
    yield from schema.pending(engine, connection)
    for statements in views.pending(engine, connection):
        yield from statements
    yield from table_sets.pending(engine, connection, plan)
