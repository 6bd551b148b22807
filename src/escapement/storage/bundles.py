"""Bundles: sets of topics with one owner each.

A topic stays in the bundle in which it was created. A name without a topic belongs to the bundle
``bundle_of_name``, which depends on the number of bundles. That number only grows.

This module owns the table ``shared_numbers``:

- The number of bundles, and the highest id of a topic when that number grew last. Topics with
  higher ids are in the bundles that their names say.
- The last id of a generation of the log. These ids are unique in the database and never used again,
  so that a former owner that still drops the tables of its generation cannot drop those of another.
- The version of the catalog: how often a namespace, a token or a grant was changed. All bundles
  share these, and their owners read them again when the version has changed.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from typing import Final

from escapement.errors import InvalidRequest, WrongBundle
from escapement.storage.engine.base import Connection, Dialect, Engine
from escapement.storage.engine.transaction import transaction

# The most bundles of a database. Each costs its owner about 2 MiB of memory. The id of a producer
# has six bits for the bundle (storage/catalog/producers.py).
MAX_BUNDLES: Final = 64

# The names of the numbers.
BUNDLES: Final = "bundles"
PLACED: Final = "placed_topics"
GENERATIONS: Final = "generations"
CATALOG: Final = "catalog"

_FIND: Final = "SELECT value FROM shared_numbers WHERE name = ?"
_SET: Final = "UPDATE shared_numbers SET value = ? WHERE name = ?"


def bundle_of_name(full: str, count: int) -> int:
    """Return the bundle to which the full name of a topic that does not exist belongs.

    Args:
      count: the number of bundles.
    """
    digest = hashlib.blake2b(full.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % count


def bundle_count(connection: Connection, lock: str = "") -> int:
    """Return the number of bundles.

    Args:
      lock: the engine's word for a lock on the number, or "". A share lock keeps it from growing
        until the open transaction ends.
    """
    ((count,),) = connection.execute(_FIND + lock, (BUNDLES,)).rows
    return int(count)


def set_bundle_count(engine: Engine, count: int) -> int:
    """Add bundles until there are ``count``. Return how many there were. Blocking.

    Existing topics stay in their bundles. A running broker places new topics by the new number at
    once, because it reads the number in the transaction that creates a topic.

    Raises:
      InvalidRequest: if there are more bundles than ``count`` already, or ``count`` is more than
        ``MAX_BUNDLES``.
    """
    if count > MAX_BUNDLES:
        raise InvalidRequest(f"A database has at most {MAX_BUNDLES} bundles; {count} were asked.")
    with closing(engine.connect()) as connection, transaction(connection):
        before = bundle_count(connection, engine.dialect.update_lock)
        if count < before:
            raise InvalidRequest(
                f"The database has {before} bundles. Their number cannot become smaller, because"
                " topics stay in their bundle."
            )
        _add(engine, connection, before, count)
    return before


def divide_new_database(engine: Engine, count: int) -> int:
    """Add bundles until there are ``count``, if the database has no topic yet and one bundle.

    Return the number of bundles. Blocking.
    """
    with closing(engine.connect()) as connection, transaction(connection):
        before = bundle_count(connection, engine.dialect.update_lock)
        after = count_after_division(connection, count)
        if after > before:
            _add(engine, connection, before, after)
    return after


def count_after_division(connection: Connection, count: int) -> int:
    """Return the number of bundles that :func:`divide_new_database` would leave."""
    before = bundle_count(connection)
    if before > 1 or connection.execute("SELECT 1 FROM topics LIMIT 1").rows:
        return before
    return count


def _add(engine: Engine, connection: Connection, before: int, count: int) -> None:
    """Add bundles to the ``before`` that exist, in the open transaction."""
    for bundle_id in range(before, count):
        connection.execute(
            f"{engine.dialect.insert_ignore} INTO leases (bundle_id, owner_id, owner_name,"
            " epoch, expires_at_ms, clean, doubtful_until_ms, doubtful_below_id,"
            " connection_ids) VALUES (?, '', '', 0, 0, 1, 0, 0, '')",
            (bundle_id,),
        )
    ((newest,),) = connection.execute("SELECT MAX(id) FROM topics").rows
    connection.execute(_SET, (count, BUNDLES))
    connection.execute(_SET, (newest or 0, PLACED))


def shared_numbers(connection: Connection) -> dict[str, int]:
    """Return all numbers by name."""
    return dict(connection.execute("SELECT name, value FROM shared_numbers").rows)


def catalog_changed(connection: Connection) -> None:
    """Note, in the open transaction, that it changes a namespace, a token or a grant."""
    connection.execute("UPDATE shared_numbers SET value = value + 1 WHERE name = ?", (CATALOG,))


def wrong_bundle(full: str, there: int, here: int) -> WrongBundle:
    """Return the error for a topic that belongs to the bundle ``there``, asked of ``here``."""
    return WrongBundle(
        f"The topic {full} belongs to bundle {there}. This broker owns bundle {here}. Ask the"
        f" broker that owns bundle {there}.",
        there,
    )


def next_generation(connection: Connection, dialect: Dialect) -> int:
    """Return an id for a new generation of the log, in the open transaction.

    No other transaction gets an id before this one ends.
    """
    ((last,),) = connection.execute(_FIND + dialect.update_lock, (GENERATIONS,)).rows
    # An older version of the broker does not write its ids to shared_numbers.
    ((newest,),) = connection.execute("SELECT MAX(id) FROM generations").rows
    id = max(int(last), int(newest or 0)) + 1
    connection.execute(_SET, (id, GENERATIONS))
    return id
