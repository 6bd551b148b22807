"""The preparation of a database for a node: its settings, its schema, and its first division."""

from __future__ import annotations

from contextlib import closing

from escapement.event_log import EventLog
from escapement.storage.bundles import bundle_count, count_after_division, divide_new_database
from escapement.storage.catalog.views import create_views
from escapement.storage.engine.base import Engine
from escapement.storage.engine.mysql.connection_limit import warn_of_shortage
from escapement.storage.log.table_sets import check_bundles
from escapement.storage.schema import migrate

_log = EventLog(__name__)


def prepare(engine: Engine, bundles: int | None, parallelism: int) -> None:
    """Check the database, bring it to the current schema, and divide it if it is new. Blocking.

    Args:
      bundles: the number of bundles of a new database; None: one.
      parallelism: the number of tables of a generation of the log.

    Raises:
      MissingRight: if the broker may not create tables, and too few exist for the bundles.
      StorageError: if the database is unsuitable.
    """
    engine.check_fitness()
    migrate(engine)
    create_views(engine)
    if bundles is not None:
        _divide(engine, bundles, parallelism)
    with closing(engine.connect()) as connection:
        warn_of_shortage(engine, connection, bundle_count(connection))


def _divide(engine: Engine, bundles: int, parallelism: int) -> None:
    with closing(engine.connect()) as connection:
        if count_after_division(connection, bundles) > bundle_count(connection):
            check_bundles(engine, connection, bundles, parallelism)
    count = divide_new_database(engine, bundles)
    if count != bundles:
        _log.warning(
            "node.bundles_kept",
            "the database keeps its %d bundles although --bundles says %d",
            count,
            bundles,
        )
