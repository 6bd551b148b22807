"""Tables that store the data of topics and subscriptions in numbered rows.

The *owner* of a row is a topic or a subscription, given by its id. Sets of offsets, and the due
times of rescheduled messages, are divided by offset into *chunks*. When a chunk changes, its row is
replaced. Attempts, dedup keys and replace keys are stored in *parts*. Each checkpoint adds a part
with the changes, and a part overrides those with lower numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from escapement.message import Buffer
from escapement.storage.engine.base import Connection, Row
from escapement.storage.engine.paging import pages, pages_of

# Chunks read in one query. Each has up to 128 KiB, most have a few hundred bytes.
_CHUNKS_AT_ONCE: Final = 256
# Parts read in one query. Each has up to 2 MiB.
_PARTS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table whose columns are those of ``key``, beginning with the owner's id, and ``data``.

    ``page_rows`` is the number of rows that :meth:`rows` reads in one query.
    """

    name: str
    key: tuple[str, ...]
    page_rows: int

    @property
    def put(self) -> str:
        """The SQL statement that inserts or replaces a row. Its parameters are key and data."""
        marks = ", ".join("?" * (len(self.key) + 1))
        return f"REPLACE INTO {self.name} ({', '.join(self.key)}, data) VALUES ({marks})"

    @property
    def delete(self) -> str:
        """The SQL statement that deletes a row. Its parameters are the columns of the key."""
        return f"DELETE FROM {self.name} WHERE {' = ? AND '.join(self.key)} = ?"

    @property
    def delete_below(self) -> str:
        """The SQL statement that deletes an owner's rows with low numbers.

        Its parameters are the owner's id and the lowest number to keep.
        """
        owner, number = self.key
        return f"DELETE FROM {self.name} WHERE {owner} = ? AND {number} < ?"

    def changes(self, rows: Sequence[Row]) -> Iterator[tuple[str, Row]]:
        """Yield an SQL statement and its parameters for each row, to store the row.

        If the data of a row is empty, the statement deletes the row.
        """
        yield from ((self.put, tuple(row)) for row in rows if row[-1])
        yield from ((self.delete, row[:-1]) for row in rows if not row[-1])

    def rows(self, connection: Connection, owners: Sequence[int] | None = None) -> Iterator[Row]:
        """Yield rows of the table in the order of their keys: the columns of key, and data.

        Args:
          owners: the ids of the owners whose rows are read; None for all rows.
        """
        columns = f"{', '.join(self.key)}, data"
        at_once = (self.key, columns, self.page_rows)
        if owners is None:
            return pages(connection, self.name, *at_once, ())
        return pages_of(connection, self.name, *at_once, owners)

    def rows_of(self, connection: Connection, owner_id: int) -> list[Row]:
        """Return all rows of one owner as (number, data), in the order of their numbers."""
        owner, number = self.key
        sql = f"SELECT {number}, data FROM {self.name} WHERE {owner} = ? ORDER BY {number}"
        return connection.execute(sql, (owner_id,)).rows


CURSOR_CHUNKS: Final = DataTable("cursor_chunks", ("subscription_id", "chunk"), _CHUNKS_AT_ONCE)
MOVES: Final = DataTable("moves", ("topic_id", "chunk"), _CHUNKS_AT_ONCE)
ARCHIVED_CHUNKS: Final = DataTable("archived_chunks", ("topic_id", "chunk"), _CHUNKS_AT_ONCE)
ATTEMPTS: Final = DataTable("attempts", ("subscription_id", "part"), _PARTS_AT_ONCE)
DEDUP_KEYS: Final = DataTable("dedup_keys", ("topic_id", "part"), _PARTS_AT_ONCE)
REPLACE_KEYS: Final = DataTable("replace_keys", ("topic_id", "part"), _PARTS_AT_ONCE)
GROUP_MEMBERS: Final = DataTable(
    "group_members", ("topic_id", "group_name", "chunk"), _CHUNKS_AT_ONCE
)


class Chunked(Protocol):
    """A set of offsets or due times that is stored in chunks."""

    def load_chunk(self, chunk_no: int, row: Buffer) -> None: ...


C = TypeVar("C", bound=Chunked)


def loaded(chunks: Iterable[tuple[Any, ...]], into: C) -> C:
    """Add stored chunks, given as (number, data), to the set ``into``, and return that set."""
    for chunk_no, data in chunks:
        into.load_chunk(chunk_no, data)
    return into
