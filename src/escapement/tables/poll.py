"""A poll: one statement that finds the messages of several tables that are due before some time.

The statement is a UNION ALL of *branches*. A table of the current edition has three branches for
each priority that is known to be in use: for messages without ``time_next``, with 0, and with other
times. A branch reads a range of the index ``(time_acked, priority, time_next DESC)``, the oldest
message first, and ends after some rows. So it reads no message that is due later, and old messages
of a low priority are found too. The index has equal times in the order of the primary key, and most
messages have the default of 0. A range of several times is read backward, and would return the
newest of them first. So NULL and 0 have branches of their own, which read forward.

One more branch looks for a priority that is not known yet. If there is one, the poll finds all that
are in use (``priorities.py``), and polls the table again.

A table of the first edition has two branches. Messages that were sent have a ``time_next``. New
messages have none, and are found by ``time_scheduled``. Acknowledged messages have no ``time_next``
either. So an index ``(time_acked, time_next)`` is the best. With the index ``(time_next, epoch)``
of the first edition, a message without ``time_next`` is found only if its epoch is 0 or NULL,
because the poll would otherwise read all acknowledged messages.

NULL in ``time_next`` of a message that is not acknowledged means that it is due now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from escapement.identifier import quoted
from escapement.storage.engine.base import Connection, Row
from escapement.tables.columns import DEFAULT_PRIORITY
from escapement.tables.discovery import MessageTable
from escapement.tables.priorities import (
    MOST_BRANCHES,
    WITHOUT_WAIT,
    InUse,
    Wanted,
    open_messages,
    priorities_in_use,
)
from escapement.tables.row_ids import RowId, RowIds

# The definition of the index that serves all branches of an edition.
_INDEXES: Final = {
    "current": "`poller_idx` (time_acked, priority, time_next DESC)",
    "first": "`next_idx` (time_acked, time_next)",
}
# With more branches than this, the values are a part of the text. The server would otherwise keep a
# large prepared statement for each set of tables that are polled together.
_FEW_BRANCHES: Final = 16
# The most priorities of a table in one poll.
MOST_PRIORITIES: Final = 256
# The column ``key`` in a row of EXPLAIN, by the length of the row. The longer row is MySQL's, which
# has a column for partitions before it.
_KEY: Final = {10: 5, 12: 6}
# A time after all others.
LAST_NS: Final = (1 << 63) - 1


class Target(NamedTuple):
    """A table to poll.

    Attributes:
      priorities: the priorities to poll; None for NULL.
      until_ns: find messages due by this time, in nanoseconds since 1970.
      known: the number of messages in memory that are due by then, also those in flight. They may
        be found again.
      room: the number of further messages that are wanted. All priorities have the same share.
      in_use: all priorities known to be in use. If another one is in use, the poll asks for them.
        None if more are in use than can be known.
      learns: whether to ask for the priorities in use in any case.
      after: ask for the priorities above this one; None for all.
    """

    table: MessageTable
    priorities: tuple[int | None, ...]
    until_ns: int
    known: int
    room: int
    in_use: tuple[int | None, ...] | None
    learns: bool = False
    after: int | None = None

    @property
    def most(self) -> int:
        """The most rows of each branch.

        A branch returns the oldest rows first, so those that are known already are among them.
        """
        return self.known + max(self.room // max(len(self.priorities), 1), 1)

    def taught(self, in_use: InUse) -> Target:
        """Return the target with the first of the priorities that were found."""
        return self._replace(priorities=in_use.values[:MOST_PRIORITIES], in_use=None)


class FoundRow(NamedTuple):
    """A row that a poll has found. ``time_ns`` is None if the message is due now.

    ``key`` is the text by which the message is divided among consumers, if it is not the id.
    """

    id: RowId
    priority: int
    epoch: int
    time_ns: int | None
    key: bytes | None


@dataclass(slots=True)
class Polled:
    """The result of a poll for one table."""

    rows: list[FoundRow] = field(default_factory=list)
    is_full: bool = False  # whether more messages may be due
    in_use: InUse | None = None  # set if it was asked for; the first priorities were polled
    has_unknown: bool = False  # whether a priority was not known
    statements: int = 1  # of the poll of all targets


# The place of a parameter in a branch. No name of a column has this character, unlike "?".
_HERE: Final = "\0"


class _Branch(NamedTuple):
    """One SELECT of the union, with ``_HERE`` for each of its parameters."""

    sql: str
    params: tuple[int, ...]


def poll(connection: Connection, targets: Sequence[Target]) -> list[Polled]:
    """Return what each target has, by priority, time and id; blocking.

    Raises:
      StorageError: if a table does not exist any more, or the database cannot be reached.
    """
    wanted = dict(enumerate(targets))
    learned: dict[int, InUse] = {}

    def learn(numbers: Iterable[int]) -> None:
        asked = {number: Wanted(wanted[number].table, wanted[number].after) for number in numbers}
        for number, in_use in priorities_in_use(connection, asked).items():
            learned[number] = in_use
            wanted[number] = wanted[number].taught(in_use)

    learn([number for number, target in wanted.items() if target.learns])
    found = _poll_once(connection, wanted)
    unknown = [number for number, polled in found.items() if polled.has_unknown]
    if unknown:
        # A message of an unknown priority may be more urgent than all that were found.
        learn(unknown)
        found |= _poll_once(connection, {number: wanted[number] for number in unknown})
    for number, in_use in learned.items():
        found[number].in_use = in_use
    for polled in found.values():
        # The database returns messages of the same time in any order.
        polled.rows.sort(key=lambda row: (row.priority, row.time_ns or 0, row.id))
    return list(found.values())


def _poll_once(connection: Connection, targets: Mapping[int, Target]) -> dict[int, Polled]:
    """Return what each target has, by its number."""
    portions = _portions(targets)
    found = {number: Polled(statements=max(len(portions), 1)) for number in targets}
    counts: dict[tuple[int, int], int] = {}
    ids = {number: RowIds(target.table.layout.id) for number, target in targets.items()}
    for row in (row for branches in portions for row in _union(connection, branches)):
        number, priority, as_number, as_bytes, epoch, time_ns, key = row
        if epoch is None:
            found[number].has_unknown = True
            continue
        id = ids[number].of(as_bytes if as_number is None else as_number)
        found[number].rows.append(
            FoundRow(id, priority, epoch, time_ns, None if key is None else bytes(key))
        )
        counts[number, priority] = counts.get((number, priority), 0) + 1
    for (number, _), count in counts.items():
        found[number].is_full |= count >= targets[number].most
    return found


def index_warning(connection: Connection, table: MessageTable) -> str | None:
    """Return which index to add to a table, if looking for due rows reads many others; else None.

    Polls use a best index if the table has it, so nothing else matters then. EXPLAIN would show a
    scan while the table is small. Otherwise, EXPLAIN must show an index that leaves out
    acknowledged messages and returns the others in order.

    Raises:
      StorageError: if the statements cannot be explained, for example for lack of a privilege.
    """
    if table.layout.due_index is not None:
        return None
    priorities = (DEFAULT_PRIORITY,)
    target = Target(table, priorities, LAST_NS, known=0, room=1000, in_use=priorities)
    for sql, params in _branches(0, target):
        explain = f"EXPLAIN FORMAT=TRADITIONAL {sql.replace(_HERE, '?')}"
        for row in connection.execute(explain, params).rows:
            is_sorted = "filesort" not in str(row[-1])
            if row[1] == "SIMPLE" and not (
                is_sorted and row[_KEY[len(row)]] in table.layout.unacked_indexes
            ):
                return (
                    "Looking for due messages reads many other messages too. ALTER TABLE"
                    f" {quoted(table.name)} ADD INDEX {_INDEXES[table.layout.edition]}."
                )
    return None


def _portions(targets: Mapping[int, Target]) -> list[list[_Branch]]:
    """Return the branches of each statement."""
    portions: list[list[_Branch]] = []
    for number, target in targets.items():
        own = _branches(number, target)
        if not portions or len(portions[-1]) + len(own) > MOST_BRANCHES:
            portions.append([])
        portions[-1] += own
    return [branches for branches in portions if branches]


def _union(connection: Connection, branches: Sequence[_Branch]) -> list[Row]:
    if len(branches) <= _FEW_BRANCHES:
        params = [value for branch in branches for value in branch.params]
        text = WITHOUT_WAIT + " UNION ALL ".join([branch.sql for branch in branches])
        return connection.execute(text.replace(_HERE, "?"), params).rows
    texts = []
    for sql, values in branches:
        pieces = sql.split(_HERE)
        filled = [f"{piece}{value:d}" for piece, value in zip(pieces, values, strict=False)]
        texts.append("".join(filled) + pieces[-1])
    return connection.execute(WITHOUT_WAIT + " UNION ALL ".join(texts)).rows


def _branches(number: int, target: Target) -> list[_Branch]:
    """Return the branches of a table. Each row has the columns that ``poll`` reads."""
    table, until_ns, most = target.table, target.until_ns, target.most
    layout = table.layout
    ids = RowIds(layout.id)
    none = "CAST(NULL AS SIGNED)", "CAST(NULL AS BINARY)"
    id = (ids.selected, none[1]) if ids.are_numbers else (none[0], ids.selected)
    index = layout.due_index
    source = open_messages(table)
    key = "CAST(NULL AS BINARY)"
    if table.directives.key_column is not None:
        key = f"CAST(CAST({quoted(table.directives.key_column)} AS CHAR) AS BINARY)"

    keys = ", ".join(map(quoted, layout.primary_key)) or "id"

    def select(
        priority: str, time: str, condition: str, order: str, *, timed: bool = True
    ) -> _Branch:
        sql = (
            f"(SELECT {number}, {priority}, {id[0]}, {id[1]}, CAST(COALESCE(epoch, 0) AS SIGNED),"
            f" CAST({time} AS SIGNED), {key} {source} AND {condition} ORDER BY {order}"
            f" LIMIT {_HERE})"
        )
        return _Branch(sql, (until_ns, most) if timed else (most,))

    if layout.edition == "first":
        # With an index that begins with time_next, a NULL alone would find acknowledged rows too.
        by_time = index is not None and index.columns[0].lower() == "time_next"
        unsent = " AND (epoch = 0 OR epoch IS NULL)" if by_time else ""
        default = f"CAST({DEFAULT_PRIORITY} AS SIGNED)"
        return [
            select(default, "time_next", f"time_next <= {_HERE}", "time_next"),
            select(
                default,
                "time_scheduled",
                f"time_next IS NULL{unsent} AND time_scheduled <= {_HERE}",
                "time_scheduled",
            ),
        ]
    priority = f"CAST(COALESCE(priority, {DEFAULT_PRIORITY}) AS SIGNED)"
    branches = []
    for one in target.priorities:
        same = "priority IS NULL" if one is None else f"priority = {one:d}"
        branches += [
            select(priority, "time_next", f"{same} AND time_next IS NULL", keys, timed=False),
            select(priority, "time_next", f"{same} AND time_next = 0", keys, timed=False),
            select(
                priority,
                "time_next",
                f"{same} AND time_next <> 0 AND time_next <= {_HERE}",
                "time_next",
            ),
        ]
    if target.in_use is None:
        return branches
    known = ", ".join(str(one) for one in target.in_use if one is not None)
    others = [f"priority NOT IN ({known})"] if known else ["priority IS NOT NULL"]
    others += [] if None in target.in_use else ["priority IS NULL"]
    branches.append(
        _Branch(
            f"(SELECT {number}, {none[0]}, {none[0]}, {none[1]}, {none[0]}, {none[0]}, {none[1]}"
            f" {source} AND ({' OR '.join(others)}) LIMIT 1)",
            (),
        )
    )
    return branches
