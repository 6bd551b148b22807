"""Table sets: tables of the log that are created ahead, for a broker that may not create tables.

`escapement migrate` creates table sets with the account of an administrator. If the broker may not
create tables, each new generation takes a free set, in the transaction that begins the generation.
When the broker forgets the generation, it deletes the rows in steps instead of dropping the tables.
Then the set is free again, in the transaction that deletes the generation's row in the catalog. So
a set has rows only while it belongs to a generation, whatever the moment of a crash.

This module owns the table ``table_sets``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from escapement.errors import MissingRight
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.existing import tables
from escapement.storage.log.generation import Generation, creation, read_generations, set_table

# The name of a table of a generation that is not in a table set.
_OWN_TABLE: Final = re.compile(r"log_(\d+)_\d+")


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


def count_free(connection: Connection) -> int:
    """Return the number of table sets that no generation uses."""
    found = connection.execute("SELECT COUNT(*) FROM table_sets WHERE generation = 0").rows
    return int(found[0][0])


def names(connection: Connection) -> set[str]:
    """Return the names of the tables of all sets."""
    rows = connection.execute("SELECT id, table_count FROM table_sets").rows
    return {set_table(id, shard) for id, count in rows for shard in range(count)}


def none_free(parallelism: int, denied: Exception) -> MissingRight:
    """Return the error for a generation that can neither create tables nor take a set."""
    return MissingRight(
        f"The log cannot begin a new generation: the broker may not create tables ({denied}), and"
        f" no table set with {parallelism} tables is free. Create more with an account that may:"
        f" escapement migrate --table-sets N --table-parallelism {parallelism}."
    )


def pending(engine: Engine, connection: Connection, wanted: int, parallelism: int) -> Iterator[str]:
    """Yield the SQL statements that create missing table sets and drop tables without a use.

    Run each statement before the next one. A set is usable from its row on, which comes last.

    Args:
      wanted: how many sets there should be, with at least ``parallelism`` tables each.
    """
    there = tables(engine, connection)
    sets: list[tuple[int, int]] = []
    if "table_sets" in there:
        rows = connection.execute("SELECT id, table_count FROM table_sets ORDER BY id").rows
        sets = [(int(id), int(count)) for id, count in rows]
    fitting = sum(count >= parallelism for _, count in sets)
    first = max((id for id, _ in sets), default=0) + 1
    for id in range(first, first + wanted - fitting):
        for shard in range(parallelism):
            yield from creation(engine.dialect, set_table(id, shard))
        yield f"INSERT INTO table_sets (id, table_count) VALUES ({id}, {parallelism})"
    yield from _unused(connection, there)


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
