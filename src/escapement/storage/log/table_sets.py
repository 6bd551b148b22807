"""Table sets: tables of the log that are created ahead, for a broker that may not create tables.

`escapement migrate` creates table sets with the account of an administrator. If the broker may not
create tables, each new generation takes a free set, in the transaction that begins the generation.
When the broker forgets the generation, it deletes the rows in steps instead of dropping the tables.
Then the set is free again, in the transaction that deletes the generation's row in the catalog. So
a set has rows only while it belongs to a generation, whatever the moment of a crash.

Each bundle of topics needs a set for its first generation, and free ones for the next. So the
number of bundles grows only if enough sets are free (:func:`check_bundles`).

This module owns the table ``table_sets``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from escapement.errors import MissingRight, StorageError
from escapement.storage import bundles
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.existing import tables
from escapement.storage.engine.mysql.errors import lacks_right
from escapement.storage.log.generation import Generation, creation, read_generations, set_table

# The name of a table of a generation that is not in a table set.
_OWN_TABLE: Final = re.compile(r"log_(\d+)_\d+")
# The sets that should be free for each bundle, beside those that its generations use. The next
# generation takes one, and one more may be taken before the forgetter frees the oldest.
SPARE_SETS: Final = 2
# A generation has about a day of messages. So these last for two weeks of retention of one bundle.
_FEWEST_SETS: Final = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """The table sets that there should be.

    Attributes:
      parallelism: the tables of each set, at least.
      total: the number of sets; None: as many as the bundles need, and some more.
      bundle_count: the number of bundles that the database will have. Those that exist count too.
    """

    parallelism: int
    total: int | None = None
    bundle_count: int = 1


def take(connection: Connection, generation: Generation) -> int | None:
    """Give a free table set to a generation, inside the open transaction of the lease's owner.

    The owners of other bundles take sets too. If one of them takes a set first, this tries the next
    one.

    Returns:
      The id of the set, or None if no free set has enough tables.
    """
    rows = connection.execute(
        "SELECT id FROM table_sets WHERE generation = 0 AND table_count >= ?"
        " ORDER BY table_count, id",
        (generation.parallelism,),
    ).rows
    for (id,) in rows:
        taken = connection.execute(
            "UPDATE table_sets SET generation = ? WHERE id = ? AND generation = 0",
            (generation.id, id),
        ).affected
        if taken:
            return int(id)
    return None


def free(connection: Connection, generation: Generation) -> None:
    """Take the set, which is empty, from a generation that had one. In the open transaction."""
    connection.execute(
        "UPDATE table_sets SET generation = 0 WHERE generation = ?", (generation.id,)
    )


def count_free(connection: Connection, parallelism: int) -> int:
    """Return the number of table sets with enough tables that no generation uses."""
    ((count,),) = connection.execute(
        "SELECT COUNT(*) FROM table_sets WHERE generation = 0 AND table_count >= ?", (parallelism,)
    ).rows
    return int(count)


def wanted_free(connection: Connection, bundle_count: int) -> int:
    """Return how many sets should be free: those of first generations, and the spare ones."""
    ((begun,),) = connection.execute(
        "SELECT COUNT(DISTINCT bundle_id) FROM generations WHERE bundle_id < ?", (bundle_count,)
    ).rows
    return bundle_count - int(begun) + SPARE_SETS * bundle_count


def check_bundles(
    engine: Engine, connection: Connection, bundle_count: int, parallelism: int
) -> None:
    """Check that the logs of all bundles can begin, and go on. Outside of a transaction.

    Args:
      bundle_count: the number of bundles that the database will have.

    Raises:
      MissingRight: if the broker may not create tables, and too few table sets are free.
    """
    denied = _denial(engine, connection)
    if denied is None:
        return
    free, wanted = count_free(connection, parallelism), wanted_free(connection, bundle_count)
    if free < wanted:
        raise MissingRight(
            f"{bundle_count} bundles need {wanted} free table sets with {parallelism} tables, and"
            f" {free} are free. The broker may not create tables ({denied}). Create the sets with"
            f" an account that may: {command(parallelism, bundle_count)}"
        )


def command(parallelism: int, bundle_count: int | None = None) -> str:
    """Return the command that creates enough table sets.

    Args:
      bundle_count: the number of bundles that the database will have; None: the present number.
    """
    added = "" if bundle_count is None else f" --bundles {bundle_count}"
    return f"escapement migrate{added} --table-parallelism {parallelism}"


def _denial(engine: Engine, connection: Connection) -> StorageError | None:
    """Return the error with which the database refuses to create tables; None if it does not.

    The server checks the right before it finds that the table exists. So nothing is created.
    """
    if engine.kind == "sqlite":
        return None
    try:
        connection.execute("CREATE TABLE IF NOT EXISTS table_sets (id BIGINT)")
    except StorageError as error:
        if not lacks_right(error):
            raise
        return error
    return None


def names(connection: Connection) -> set[str]:
    """Return the names of the tables of all sets."""
    rows = connection.execute("SELECT id, table_count FROM table_sets").rows
    return {set_table(id, shard) for id, count in rows for shard in range(count)}


def none_free(parallelism: int, denied: Exception) -> MissingRight:
    """Return the error for a generation that can neither create tables nor take a set."""
    return MissingRight(
        f"The log cannot begin a new generation: the broker may not create tables ({denied}), and"
        f" no table set with {parallelism} tables is free. Create more with an account that may:"
        f" {command(parallelism)}"
    )


def pending(engine: Engine, connection: Connection, plan: Plan) -> Iterator[str]:
    """Yield the SQL statements that create missing table sets and drop tables without a use.

    Run each statement before the next one. A set is usable from its row on, which comes last.
    """
    there, parallelism = tables(engine, connection), plan.parallelism
    if {"table_sets", "generations", "shared_numbers"} <= there:
        first, missing = _missing(connection, plan)
    else:  # in a dry run: no bundle has begun a generation
        fewest = max(_FEWEST_SETS, (1 + SPARE_SETS) * plan.bundle_count)
        first, missing = 1, fewest if plan.total is None else plan.total
    for id in range(first, first + missing):
        for shard in range(parallelism):
            yield from creation(engine.dialect, set_table(id, shard))
        yield f"INSERT INTO table_sets (id, table_count) VALUES ({id}, {parallelism})"
    yield from _unused(connection, there)


def _missing(connection: Connection, plan: Plan) -> tuple[int, int]:
    """Return the id of the next table set, and how many are missing."""
    rows = connection.execute("SELECT id, table_count FROM table_sets").rows
    first = max((int(id) for id, _ in rows), default=0) + 1
    fitting = sum(count >= plan.parallelism for _, count in rows)
    if plan.total is not None:
        return first, max(plan.total - fitting, 0)
    bundle_count = max(plan.bundle_count, bundles.bundle_count(connection))
    wanted = wanted_free(connection, bundle_count) - count_free(connection, plan.parallelism)
    return first, max(wanted, _FEWEST_SETS - fitting, 0)


def _unused(connection: Connection, there: set[str]) -> Iterator[str]:
    """Yield a DROP TABLE for each table of a forgotten generation that its broker could not drop.

    A generation enters the catalog before its tables are created, and ids are never used again. So
    a table that was there before the catalog is read, and is not in it, has no use any more.
    """
    if "generations" not in there:
        return
    known = {generation.id for generation in read_generations(connection)}
    for table in sorted(there):
        own = _OWN_TABLE.fullmatch(table)
        if own is not None and int(own[1]) not in known:
            yield f"DROP TABLE IF EXISTS {table}"
