"""Tables that hold the data of an owner, a topic or a subscription, in numbered rows.

Sets of offsets and due times are cut into *chunks*, which are written again when they change.
Attempts and dedup keys are written in *parts*: a later part counts more than an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from escapement.message import Buffer
from escapement.storage.engine.base import Connection, Row
from escapement.storage.engine.paging import pages

# Below every id: the cancelled messages of a topic have its negative id.
_LEAST: Final = -(1 << 63)
# Chunks read at once. Each has up to 128 KiB, most have a few hundred bytes.
_CHUNKS_AT_ONCE: Final = 256
# Parts read at once. Each has up to 2 MiB.
_PARTS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table with the columns of ``key``, which begins with the owner's id, and ``data``."""

    name: str
    key: tuple[str, ...]
    page_rows: int
    least: tuple[Any, ...] = (_LEAST, _LEAST)  # a key below all others

    @property
    def put(self) -> str:
        """The statement that stores a row. Its parameters are the key and the data."""
        marks = ", ".join("?" * (len(self.key) + 1))
        return f"REPLACE INTO {self.name} ({', '.join(self.key)}, data) VALUES ({marks})"

    @property
    def delete(self) -> str:
        """The statement that deletes a row. Its parameters are the key."""
        return f"DELETE FROM {self.name} WHERE {' = ? AND '.join(self.key)} = ?"

    @property
    def delete_below(self) -> str:
        """The statement that deletes an owner's rows below a number."""
        owner, number = self.key
        return f"DELETE FROM {self.name} WHERE {owner} = ? AND {number} < ?"

    def changes(self, rows: Sequence[Row]) -> Iterator[tuple[str, Row]]:
        """Yield the statements that store these rows. A row without data is deleted."""
        yield from ((self.put, tuple(row)) for row in rows if row[-1])
        yield from ((self.delete, row[:-1]) for row in rows if not row[-1])

    def rows(self, connection: Connection) -> Iterator[Row]:
        """Yield all rows, the key and the data of each, in the order of their keys."""
        columns = f"{', '.join(self.key)}, data"
        return pages(connection, self.name, self.key, columns, self.page_rows, self.least)

    def rows_of(self, connection: Connection, owner_id: int) -> list[Row]:
        """Return the number and the data of an owner's rows, in the order of the numbers."""
        owner, number = self.key
        sql = f"SELECT {number}, data FROM {self.name} WHERE {owner} = ? ORDER BY {number}"
        return connection.execute(sql, (owner_id,)).rows


CURSOR_CHUNKS: Final = DataTable("cursor_chunks", ("subscription_id", "chunk"), _CHUNKS_AT_ONCE)
MOVES: Final = DataTable("moves", ("topic_id", "chunk"), _CHUNKS_AT_ONCE)
ARCHIVED_CHUNKS: Final = DataTable("archived_chunks", ("topic_id", "chunk"), _CHUNKS_AT_ONCE)
ATTEMPTS: Final = DataTable("attempts", ("subscription_id", "part"), _PARTS_AT_ONCE)
DEDUP_KEYS: Final = DataTable("dedup_keys", ("topic_id", "part"), _PARTS_AT_ONCE)
GROUP_MEMBERS: Final = DataTable(
    "group_members", ("topic_id", "name", "chunk"), _CHUNKS_AT_ONCE, (_LEAST, "", _LEAST)
)


class Chunked(Protocol):
    """A set of offsets or due times that is stored in chunks."""

    def load_chunk(self, chunk_no: int, row: Buffer) -> None: ...


C = TypeVar("C", bound=Chunked)


def loaded(chunks: Iterable[tuple[Any, ...]], into: C) -> C:
    """Load chunks, each with its number and data, into a set, and return the set."""
    for chunk_no, data in chunks:
        into.load_chunk(chunk_no, data)
    return into
