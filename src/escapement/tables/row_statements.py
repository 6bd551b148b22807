"""The statements that read and write single rows of a message table, found by their ids.

A *version* of a row is its epoch, ``time_next`` and priority. A broker *claims* messages right
before it sends them: it locks those rows that still have the version that it knows, records the
sending in them, and reads their values. So rows that were acknowledged, rescheduled or deleted by
SQL meanwhile are not sent.

All statements run in a transaction of the caller. They find rows by the unique index of the ids,
whatever the optimizer would prefer, because a scan of the table would meet the locks of other
sessions. They lock rows first and skip those that other sessions have locked. So they never wait
for an open transaction of an application. The session is READ COMMITTED, so they lock no gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np

from escapement.errors import StorageError
from escapement.identifier import quoted
from escapement.message import Int64s
from escapement.storage.engine.base import Connection, Row
from escapement.storage.engine.value_lists import padded
from escapement.tables.columns import DEFAULT_PRIORITY, Column
from escapement.tables.discovery import MessageTable
from escapement.tables.fields import column_expression, fields_of
from escapement.tables.row_ids import RowId, RowIds

# Stands for NULL in columns of ``time_next``.
NO_TIME_NS: Final = -(1 << 63)
# An UPDATE for all rows with the same new values costs a round trip. If there are more different
# values than this, one UPDATE for each row is faster, because these are sent together.
_FEW_VALUES: Final = 16
# The columns of a version, with the id before them.
_VERSION_COLUMNS: Final = 4
# A claim reads the values of small rows together with their versions, and those of larger rows when
# it knows their sizes. So the values of a statement have a bounded size.
_SMALL_BYTES: Final = 16 * 1024
# The types whose values may be long.
_LONG_TYPES: Final = frozenset(
    {"varchar", "varbinary", "text", "mediumtext", "longtext", "json"}
    | {"blob", "mediumblob", "longblob", "vector"}
    | {"geometry", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"}
    | {"geometrycollection", "geomcollection"}
)


@contextmanager
def values_of(table: str) -> Iterator[None]:
    """Turn errors about values that cannot be read or written into a ``StorageError``."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise StorageError(f"a value of table {table} cannot be used: {error}") from error


class Versions(NamedTuple):
    """Versions of rows: columns of equal height. ``times_ns`` has ``NO_TIME_NS`` for NULL."""

    epochs: Int64s
    times_ns: Int64s
    priorities: Int64s


class Claimed(NamedTuple):
    """The result of a claim.

    Attributes:
      taken: the positions of the rows that were claimed; ascending.
      busy: the positions of the rows that another session has locked, and of those that would make
        the claim too large.
      payloads: the encoded values of each row of ``taken``.
      large: the rows that are too large for a message: the size of each, by its position. They were
        recorded as sent, so their next attempt comes after the usual back-off.
    """

    taken: Int64s
    busy: Int64s
    payloads: list[bytes]
    large: dict[int, int]


class RowStatements:
    """The statements for the rows of one table, as it is defined now."""

    def __init__(self, table: MessageTable) -> None:
        layout = table.layout
        self.table = table
        self.ids = RowIds(layout.id)
        self.fields = fields_of(table.sent)
        self._name = f"{quoted(table.name)} FORCE INDEX ({quoted(layout.id_index)})"
        first = layout.edition == "first"
        priority = f"COALESCE(priority, {DEFAULT_PRIORITY})"
        version = (
            self.ids.selected,
            "CAST(COALESCE(epoch, 0) AS SIGNED)",
            f"COALESCE(time_next, {'time_scheduled' if first else 'NULL'})",
            str(DEFAULT_PRIORITY) if first else f"CAST({priority} AS SIGNED)",
        )
        # A time that is not NULL has its own value, so "due now" and "due then" differ.
        columns = ", ".join([*version, _size(table.sent), *map(_if_small, table.sent)])
        self._claimed = f"SELECT {columns} FROM {self._name} WHERE id"
        columns = ", ".join([self.ids.selected, *map(column_expression, table.sent)])
        self._values = f"SELECT {columns} FROM {self._name} WHERE id"
        self._versions = f"SELECT {', '.join(version)} FROM {self._name} WHERE id"
        self._open = f"SELECT {self.ids.selected} FROM {self._name} WHERE id"

    # -- claims --------------------------------------------------------------------

    def claim(
        self,
        connection: Connection,
        ids: Sequence[RowId],
        known: Versions,
        epochs: Int64s,
        times_ns: Int64s,
        most_row_bytes: int,
        most_bytes: int,
    ) -> Claimed:
        """Record that rows are sent, and return their values. The caller commits.

        Args:
          ids: the rows, each once.
          known: the version that each row must still have.
          epochs, times_ns: the new values of ``epoch`` and ``time_next``.
          most_row_bytes: the size of the largest row that can be sent.
          most_bytes: the size of the values of all rows together. Further rows are not claimed.
        """
        found, same, missing = self._unchanged(connection, self._claimed, ids, known)
        values = {id: row[_VERSION_COLUMNS + 1 :] for id, row in found.items()}
        sizes = np.array([found[ids[at]][_VERSION_COLUMNS] for at in same.tolist()], np.int64)
        is_large = sizes > most_row_bytes
        fits = np.cumsum(np.where(is_large, 0, sizes)) <= most_bytes
        whole = same[fits & ~is_large & (sizes > _SMALL_BYTES)]
        values |= self._read(connection, [ids[at] for at in whole.tolist()])
        self._set(connection, ids, same[fits], epochs, times_ns)
        large = dict(zip(same[is_large].tolist(), sizes[is_large].tolist(), strict=True))
        taken = same[fits & ~is_large]
        pack = msgpack.Packer().pack
        payloads = [pack(_bytes_of(values[ids[at]])) for at in taken.tolist()]
        # The values may be longer than in the table, where the characters may have another code.
        lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
        for row in np.flatnonzero(lengths > most_row_bytes)[::-1].tolist():
            large[int(taken[row])] = len(payloads.pop(row))
        taken = taken[lengths <= most_row_bytes]
        busy = np.concatenate([self._busy(connection, ids, missing), same[~fits]])
        return Claimed(taken, busy, payloads, large)

    def try_claim(self, connection: Connection) -> None:
        """Make a claim of no rows.

        Raises:
          StorageError: if the statements of claims cannot be used for any row.
        """
        none = "IS NULL AND FALSE"
        connection.execute(f"{self._claimed} {none} FOR UPDATE SKIP LOCKED")
        connection.execute(f"{self._values} {none}")
        connection.execute(f"UPDATE {self._name} SET epoch = 0, time_next = 0 WHERE id {none}")

    def _read(self, connection: Connection, ids: Sequence[RowId]) -> dict[RowId, Row]:
        """Return the values of locked rows."""
        return {
            self.ids.of(row[0]): row[1:]
            for some in padded(ids)
            for row in connection.execute(
                f"{self._values} {self.ids.in_list(len(some))}", some
            ).rows
        }

    def _unchanged(
        self, connection: Connection, select: str, ids: Sequence[RowId], known: Versions
    ) -> tuple[dict[RowId, Row], Int64s, list[int]]:
        """Lock rows, and find those that still have the known version.

        Args:
          select: the statement that reads the rows. Its columns begin with those of a version.

        Returns:
          The rows that it has read, the positions of the unchanged ones, and those of the rows that
          it has not read.
        """
        rows = self._locked(connection, select, ids)
        found = {self.ids.of(row[0]): row for row in rows}
        there = [at for at, id in enumerate(ids) if id in found]
        now = Versions(*_columns([found[ids[at]] for at in there]))
        positions = np.array(there, np.int64)
        same = np.ones(len(there), bool)
        for before, after in zip(known, now, strict=True):
            same &= before[positions] == after
        return found, positions[same], [at for at, id in enumerate(ids) if id not in found]

    def _set(
        self,
        connection: Connection,
        ids: Sequence[RowId],
        rows: Int64s,
        epochs: Int64s,
        times_ns: Int64s,
    ) -> None:
        """Set epoch and ``time_next`` of locked rows, given by their positions."""
        update = f"UPDATE {self._name} SET epoch = ?, time_next = ? WHERE id"
        pairs = np.stack([epochs[rows], times_ns[rows]], axis=1)
        values, which = np.unique(pairs, axis=0, return_inverse=True)
        if len(values) > _FEW_VALUES:
            connection.execute_many(
                f"{update} = {self.ids.placeholder}",
                [(*pair, ids[at]) for pair, at in zip(pairs.tolist(), rows.tolist(), strict=True)],
            )
            return
        for number, pair in enumerate(values.tolist()):
            same = rows[which.reshape(-1) == number].tolist()
            for some in padded([ids[at] for at in same]):
                sql = f"{update} {self.ids.in_list(len(some))}"
                connection.execute(sql, [*pair, *some])

    # -- acknowledgements and retries ----------------------------------------------

    def acknowledge(
        self, connection: Connection, ids: Sequence[RowId], at_ns: int
    ) -> tuple[set[RowId], set[RowId]]:
        """Acknowledge rows that are not acknowledged yet. The caller commits.

        Returns:
          The ids of these rows, and the ids of the rows that another session has locked.
        """
        rows = self._locked(connection, self._open, ids)
        found = {self.ids.of(row[0]) for row in rows}
        for some in padded(list(found)):
            connection.execute(
                f"UPDATE {self._name} SET time_acked = ?, time_next = NULL"
                f" WHERE id {self.ids.in_list(len(some))}",
                [at_ns, *some],
            )
        missing = [at for at, id in enumerate(ids) if id not in found]
        return found, {ids[at] for at in self._busy(connection, ids, missing).tolist()}

    def reschedule(
        self,
        connection: Connection,
        ids: Sequence[RowId],
        known: Versions,
        epochs: Int64s,
        times_ns: Int64s,
    ) -> tuple[Int64s, Int64s]:
        """Set epoch and ``time_next`` of rows that still have the known version.

        The caller commits.

        Returns:
          The positions of these rows, and those of the rows that another session has locked.
        """
        _, taken, missing = self._unchanged(connection, self._versions, ids, known)
        self._set(connection, ids, taken, epochs, times_ns)
        return taken, self._busy(connection, ids, missing)

    # -- rows ----------------------------------------------------------------------

    def _locked(self, connection: Connection, select: str, ids: Sequence[RowId]) -> list[Row]:
        """Lock and return the rows that are neither acknowledged nor locked by another session."""
        return [
            row
            for some in padded(ids)
            for row in connection.execute(
                f"{select} {self.ids.in_list(len(some))} AND time_acked IS NULL"
                " FOR UPDATE SKIP LOCKED",
                some,
            ).rows
        ]

    def _busy(self, connection: Connection, ids: Sequence[RowId], missing: Sequence[int]) -> Int64s:
        """Return those of the missing rows that exist and are not acknowledged.

        Another session has locked them, or had them locked a moment ago.
        """
        rows = [
            row
            for some in padded([ids[at] for at in missing])
            for row in connection.execute(
                f"{self._open} {self.ids.in_list(len(some))} AND time_acked IS NULL", some
            ).rows
        ]
        there = {self.ids.of(row[0]) for row in rows}
        return np.array([at for at in missing if ids[at] in there], np.int64)


def _columns(rows: Sequence[Row]) -> Iterator[Int64s]:
    """Return the epochs, times and priorities of rows as columns."""
    for at in range(1, _VERSION_COLUMNS):
        values = [NO_TIME_NS if row[at] is None else row[at] for row in rows]
        yield np.array(values, np.int64)


def _size(columns: Sequence[Column]) -> str:
    """Return the SQL expression for the size of the long values of a row."""
    lengths = [
        f"COALESCE(LENGTH({quoted(column.name)}), 0)"
        for column in columns
        if column.data_type in _LONG_TYPES
    ]
    return f"CAST({' + '.join(lengths) or '0'} AS SIGNED)"


def _if_small(column: Column) -> str:
    """Return the SQL expression for a value, which may be NULL instead if it is long."""
    expression = column_expression(column)
    if column.data_type not in _LONG_TYPES:
        return expression
    return f"IF(LENGTH({quoted(column.name)}) <= {_SMALL_BYTES}, {expression}, NULL)"


def _bytes_of(values: Sequence[Any]) -> list[bytes | None]:
    """Return the values of a row for its payload."""
    return [value.encode() if isinstance(value, str) else value for value in values]
