"""The rows of one message table that are in memory, as columns.

Each row that a poll finds gets an *offset*, a number under which the subscription knows it. It is
never used again, not by a later broker either: a client that connects again may send the
acknowledgement of an earlier offset once more. If a row is changed by SQL, the broker forgets it,
and a later poll finds it as a new one.

The columns have the *version* of each row: epoch, ``time_next`` and priority, as the broker last
read or wrote them. A row is sent only if the table still has this version. ``changed`` has the
number of the poll during or after which the broker last wrote the version. So an older poll does
not take it for a change by SQL. A row is *refused* from a claim that the database refuses until the
next one that it accepts.

Pure. Invariants (``_check``): offsets ascend; each row that is alive has its id in the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from escapement.message import Bools, Int64s, UInt32s
from escapement.storage.index import Key
from escapement.storage.index.keys import position
from escapement.tables.row_ids import RowId
from escapement.tables.row_statements import Versions

# Removed rows are dropped from the columns when they are more than this and more than the others.
_SPARE_ROWS: Final = 1024
_NUMBERS: Final = ("offsets", "due_ms", "epochs", "times_ns", "priorities", "changed")


class CachedRows:
    """The rows of one table in memory.

    Args:
      first_offset: the offset of the first row.
    """

    def __init__(self, first_offset: int = 0) -> None:
        self.next_offset = first_offset
        self._numbers: dict[str, Int64s] = {name: np.zeros(0, np.int64) for name in _NUMBERS}
        self._traits: UInt32s = np.zeros(0, np.uint32)
        self._alive: Bools = np.zeros(0, bool)
        self._writing: Bools = np.zeros(0, bool)
        self._refused: Bools = np.zeros(0, bool)
        self._ids: npt.NDArray[Any] = np.zeros(0, object)
        self._keys: npt.NDArray[Any] = np.zeros(0, object)
        self._by_id: dict[RowId, int] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    # -- rows come and go ------------------------------------------------------------

    def add(
        self,
        ids: Sequence[RowId],
        keys: Sequence[bytes],
        due_ms: Int64s,
        traits: UInt32s,
        versions: Versions,
    ) -> Int64s:
        """Add rows that are not here, and return their offsets, which ascend."""
        count = len(ids)
        offsets = np.arange(self.next_offset, self.next_offset + count)
        self.next_offset += count
        new = (offsets, due_ms, *versions, np.zeros(count, np.int64))
        for name, column in zip(_NUMBERS, new, strict=True):
            self._numbers[name] = np.concatenate([self._numbers[name], column])
        self._traits = np.concatenate([self._traits, traits])
        self._alive = np.concatenate([self._alive, np.ones(count, bool)])
        self._writing = np.concatenate([self._writing, np.zeros(count, bool)])
        self._refused = np.concatenate([self._refused, np.zeros(count, bool)])
        self._ids = np.concatenate([self._ids, _objects(ids)])
        self._keys = np.concatenate([self._keys, _objects(keys)])
        self._by_id.update(zip(ids, offsets.tolist(), strict=True))
        return offsets

    def remove(self, offsets: Int64s) -> list[RowId]:
        """Remove those of these rows that are here; return their ids."""
        at = self._at(offsets[self.contains(offsets)])
        self._alive[at] = False
        ids: list[RowId] = self._ids[at].tolist()
        for id in ids:
            del self._by_id[id]
        dead = len(self._alive) - len(self._by_id)
        if dead > max(_SPARE_ROWS, len(self._by_id)):
            self._compact()
        return ids

    def clear(self) -> None:
        """Remove all rows."""
        self.remove(self._numbers["offsets"][self._alive])
        self._compact()

    def _compact(self) -> None:
        kept = np.flatnonzero(self._alive)
        self._numbers = {name: column[kept] for name, column in self._numbers.items()}
        self._traits, self._alive = self._traits[kept], self._alive[kept]
        self._writing, self._refused = self._writing[kept], self._refused[kept]
        self._ids, self._keys = self._ids[kept], self._keys[kept]

    # -- looking up --------------------------------------------------------------------

    def offsets_of(self, ids: Sequence[RowId]) -> Int64s:
        """Return the offset of each row, -1 for a row that is not here; int64[n]."""
        get = self._by_id.get
        return np.fromiter((get(id, -1) for id in ids), np.int64, len(ids))

    def contains(self, offsets: Int64s) -> Bools:
        """Return which of these rows are here; bool[n]."""
        known = self._numbers["offsets"]
        if not len(known):
            return np.zeros(len(offsets), bool)
        at = np.minimum(known.searchsorted(offsets), len(known) - 1)
        there: Bools = (known[at] == offsets) & self._alive[at]
        return there

    def _at(self, offsets: Int64s) -> Int64s:
        at: Int64s = self._numbers["offsets"].searchsorted(offsets)
        return at

    def ids(self, offsets: Int64s) -> list[RowId]:
        """Return the ids of rows that are here."""
        found: list[RowId] = self._ids[self._at(offsets)].tolist()
        return found

    def keys(self, offsets: Int64s) -> list[bytes]:
        """Return the keys of rows that are here."""
        found: list[bytes] = self._keys[self._at(offsets)].tolist()
        return found

    def later(self, now_ns: int) -> Int64s:
        """Return the rows here that have a ``time_next`` after ``now_ns``."""
        return self._numbers["offsets"][self._alive & (self._numbers["times_ns"] > now_ns)]

    def refused(self, now_ns: int) -> Int64s:
        """Return the refused rows here that have no ``time_next`` after ``now_ns``."""
        due = self._numbers["times_ns"] <= now_ns
        return self._numbers["offsets"][self._alive & self._refused & due]

    def set_refused(self, offsets: Int64s, refused: bool) -> None:
        """Note that the database refused, or accepted, the claim of those rows that are here."""
        self._refused[self._at(offsets[self.contains(offsets)])] = refused

    # -- versions ----------------------------------------------------------------------

    def versions(self, offsets: Int64s) -> Versions:
        """Return the versions of rows that are here."""
        at = self._at(offsets)
        return Versions(*(self._numbers[name][at] for name in ("epochs", "times_ns", "priorities")))

    def set_versions(self, offsets: Int64s, epochs: Int64s, times_ns: Int64s, poll: int) -> None:
        """Note that the broker has written epochs and times to rows that are here.

        Args:
          poll: the number of the last poll that has begun.
        """
        at = self._at(offsets)
        self._numbers["epochs"][at] = epochs
        self._numbers["times_ns"][at] = times_ns
        self._numbers["changed"][at] = poll

    def changed_since(self, offsets: Int64s, poll: int) -> Bools:
        """Return which rows were written since this poll began, or are being written; bool[n]."""
        at = self._at(offsets)
        changed: Bools = (self._numbers["changed"][at] >= poll) | self._writing[at]
        return changed

    def set_writing(self, offsets: Int64s, writing: bool) -> None:
        """Note that the broker writes, or no longer writes, those of these rows that are here."""
        self._writing[self._at(offsets[self.contains(offsets)])] = writing

    def are_written(self, offsets: Int64s) -> Bools:
        """Return which rows are being written; bool[n]."""
        writing: Bools = self._writing[self._at(offsets)]
        return writing

    # -- the delivery order ---------------------------------------------------------------

    def between(self, start: Key, until: Key) -> tuple[Int64s, Int64s, UInt32s]:
        """Return due times, offsets and traits of the rows in ``[start, until)``, sorted."""
        due_ms, offsets = self._numbers["due_ms"], self._numbers["offsets"]
        near = (due_ms >= start.due_ms) & (due_ms <= until.due_ms) & self._alive
        at = np.flatnonzero(near)
        at = at[np.argsort(due_ms[at], kind="stable")]  # offsets ascend already
        low = position(due_ms[at], offsets[at], start)
        at = at[low : position(due_ms[at], offsets[at], until)]
        return due_ms[at], offsets[at], self._traits[at]

    def next_due(self, after: Key) -> int | None:
        """Return the due time of the first row at or past ``after``; None if there is none."""
        due_ms, offsets = self._numbers["due_ms"], self._numbers["offsets"]
        past = (due_ms > after.due_ms) | ((due_ms == after.due_ms) & (offsets >= after.offset))
        found = due_ms[past & self._alive]
        return int(found.min()) if len(found) else None

    def _check(self) -> None:
        """Assert the invariants."""
        offsets = self._numbers["offsets"]
        assert bool((offsets[1:] > offsets[:-1]).all()), "offsets do not ascend"
        alive = np.flatnonzero(self._alive)
        expected = dict(zip(self._ids[alive].tolist(), offsets[alive].tolist(), strict=True))
        assert expected == self._by_id, "the map of ids is wrong"


def _objects(values: Sequence[object]) -> npt.NDArray[Any]:
    """Return values as a column of Python objects."""
    column = np.empty(len(values), object)
    column[:] = values
    return column
