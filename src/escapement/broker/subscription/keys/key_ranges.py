"""Key ranges: which consumer gets the messages of which slots.

The *slot* of a message is a 16-bit hash of its key. A consumer asks for an exact range of slots, or
lets the subscription assign one (``AUTO``). The slots outside exact ranges are divided equally
among the ``AUTO`` consumers, in the order in which they joined. Consumers that ask for no range get
the messages of the slots in no range. If there is no such consumer, these messages wait. A message
without a key goes to any consumer.

Pure: created again whenever a consumer joins or leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.delivery.consumer import Consumer
from escapement.broker.subscription.delivery.dispatcher import level_out, share_out
from escapement.broker.subscription.priorities.ready import Ready, Rows
from escapement.errors import Conflict
from escapement.message import Int64s
from escapement.traits import AUTO, SLOTS, KeyRange, have_keys, key_slots

_REST: Final = -1  # the owner of a slot that is in no consumer's range
_ANY: Final = -2  # the owner of a message without a key
# The owners of all slots if no consumer asks for a range. Subscriptions share this array, because
# it takes half a megabyte and most never need one of their own.
_UNDIVIDED: Final = np.full(SLOTS, _REST, np.intp)
_UNDIVIDED.flags.writeable = False


def check_range(consumers: Sequence[Consumer], wanted: KeyRange) -> None:
    """Raise ``Conflict`` if a range overlaps that of one of these consumers."""
    if not isinstance(wanted, tuple):
        return
    for consumer in consumers:
        taken = consumer.key_range
        if isinstance(taken, tuple) and wanted[0] <= taken[1] and taken[0] <= wanted[1]:
            who = consumer.name or "another consumer"
            raise Conflict(
                f"the key range {wanted[0]}-{wanted[1]} overlaps with {taken[0]}-{taken[1]}, "
                f"which {who} has; ask for one that is free, or for {AUTO!r}"
            )


class KeyRanges:
    """The assignment of slots to the consumers of one subscription."""

    __slots__ = ("_consumers", "_divides", "_owners", "_rest", "_turn")

    def __init__(self, consumers: Sequence[Consumer]) -> None:
        self._consumers = len(consumers)
        self._divides = any(consumer.key_range is not None for consumer in consumers)
        self._owners = _UNDIVIDED.copy() if self._divides else _UNDIVIDED
        for position, consumer in enumerate(consumers):
            if isinstance(consumer.key_range, tuple):
                first, last = consumer.key_range
                self._owners[first : last + 1] = position
        autos = [at for at, consumer in enumerate(consumers) if consumer.key_range == AUTO]
        if autos:
            free = np.flatnonzero(self._owners == _REST)
            for position, part in zip(autos, np.array_split(free, len(autos)), strict=True):
                self._owners[part] = position
        self._rest = [at for at, consumer in enumerate(consumers) if consumer.key_range is None]
        self._turn = 0

    def wanted(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return which rows some consumer is to get; bool[n]. The others wait."""
        if self._rest or rows.traits is None:
            return np.ones(rows.height, bool)
        owned: npt.NDArray[np.bool_] = self._owners[key_slots(rows.traits)] != _REST
        return owned | ~have_keys(rows.traits)

    def without_room(self, room: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Return the slots whose consumers have no room; bool[SLOTS].

        Args:
          room: how many messages each consumer can get now.
        """
        rest_has_none = not any(room[at] > 0 for at in self._rest)
        return np.array([*(left <= 0 for left in room), rest_has_none])[self._owners]

    def slots_beside(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return all slots of the consumers whose slots include the slot of a row; bool[SLOTS].

        Slots in no range count as the slots of one consumer.
        """
        there = np.zeros(self._consumers + 1, bool)  # the last one stands for slots in no range
        if rows.traits is not None:
            there[self._owners[key_slots(rows.traits[have_keys(rows.traits)])]] = True
        found: npt.NDArray[np.bool_] = there[self._owners]
        return found

    def deal(
        self,
        rows: Rows,
        open_rows: Int64s,
        consumers: Sequence[Consumer],
        room: Sequence[int],
        most: int,
        busy: Sequence[int] | None = None,
    ) -> list[tuple[int, Int64s]]:
        """Assign rows to consumers.

        Args:
          open_rows: the positions of the deliverable rows, ascending.
          consumers: the same consumers as at the creation.
          room: how many messages each consumer can get now.
          most: how many rows to assign altogether; earlier rows are preferred.
          busy: how many messages each consumer has in flight. A row that several consumers may get
            then goes to the least busy of them. None to let them take turns.

        Returns:
          For each consumer that gets rows, its position and the positions of its rows.
        """
        if not len(open_rows) or most <= 0:
            return []
        left = list(room)
        dealt: list[list[Int64s]] = [[] for _ in consumers]
        for_some, for_all = open_rows[:0], open_rows[:most]
        if self._divides and rows.traits is not None:
            traits = rows.traits[open_rows]
            owners = np.where(have_keys(traits), self._owners[key_slots(traits)], _ANY)
            for position in np.flatnonzero(np.bincount(owners[owners >= 0])).tolist():
                mine = open_rows[owners == position][: left[position]]
                dealt[position].append(mine)
                left[position] -= len(mine)
            for_some, for_all = open_rows[owners == _REST], open_rows[owners == _ANY]
        for shared, all_may in ((for_some, False), (for_all, True)):
            room_here = [
                left[at] if all_may or consumer.key_range is None else 0
                for at, consumer in enumerate(consumers)
            ]
            count, turn = len(shared), self._turn % len(consumers)
            if busy is None:
                runs, self._turn = share_out(count, room_here, turn, count)
            else:
                holds = [held + sum(map(len, dealt[at])) for at, held in enumerate(busy)]
                runs, self._turn = level_out(count, room_here, holds, turn, count)
            first = 0
            for position, count in runs:
                dealt[position].append(shared[first : first + count])
                left[position] -= count
                first += count
        found = [
            (position, np.sort(np.concatenate(parts)))
            for position, parts in enumerate(dealt)
            if sum(map(len, parts))
        ]
        if sum(len(at) for _, at in found) > most:
            last = np.sort(np.concatenate([at for _, at in found]))[most - 1]
            found = [(position, at[at <= last]) for position, at in found]
        return [(position, at) for position, at in found if len(at)]


def shorten(ready: Ready, most: int) -> Rows:
    """Remove and return the last ready rows that have a key, so that ``most`` rows are left.

    Rows without a key stay, because they go to any consumer. So more rows may be left. Rows with a
    key that were sent before stay, too, but take no room in ``ready`` from now on. O(rows).
    """
    rows = ready.rows()
    if rows.traits is None:
        return Rows.none()
    rows = rows.pick(have_keys(rows.traits)).in_order(ready.ageing_ms)
    sent = rows.pick(rows.attempts > 0)
    ready.withdraw(sent.offsets)
    ready.push_tried(sent)
    fresh = rows.pick(rows.attempts == 0)
    gone = fresh.pick(slice(fresh.height - min(fresh.height, max(0, ready.untried - most)), None))
    ready.withdraw(gone.offsets)
    return gone
