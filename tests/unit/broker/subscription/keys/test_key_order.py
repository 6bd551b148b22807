"""Acknowledged messages free their keys, wherever the keys are in the table by then."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from escapement.broker.subscription.keys.key_order import KeyOrder
from escapement.broker.subscription.priorities.ready import Rows
from escapement.message import Int64s
from escapement.storage.offsets import OffsetSet
from escapement.traits import HAS_KEY

DUE_MS: Final = 1_000


def rows_of(*offsets: int) -> Rows:
    """Return rows that each have a key of their own, except offset 0."""
    column = np.array(offsets, np.int64)
    traits = np.where(column > 0, HAS_KEY | column, 0).astype(np.uint32)
    return Rows.fresh(np.full(len(column), DUE_MS), column, traits)


class AllInFlight:
    """An order whose messages are all in flight, and the offsets that it holds."""

    def __init__(self, *offsets: int) -> None:
        self.order = KeyOrder(False, 0)
        self.held = OffsetSet()
        self.push(*offsets)
        rows, places = self.order.queues.open(self.order.table.busy, len(offsets), all_heads=False)
        self.order.deliver(rows, places)
        self._rows = rows

    def push(self, *offsets: int) -> None:
        """Add these messages to the queues."""
        rows = rows_of(*offsets)
        self.held.add(rows.offsets)
        self.order.push(rows)
        self.order.settle(self.held)

    def acknowledge(self, *offsets: int) -> None:
        """Acknowledge these messages."""
        self.order.done(self._rows.pick(np.isin(self._rows.offsets, offsets)))
        self.held.discard(np.array(offsets, np.int64))
        self.order.settle(self.held)
        self.order._check()

    @property
    def busy(self) -> Int64s:
        """The messages that hold their keys."""
        return np.sort(self.order.table.holders[self.order.table.busy])


@pytest.mark.parametrize("others", [0, 1, 3, 100])
def test_key_is_freed_after_it_moved_in_the_table(others: int) -> None:
    """V6: other keys have been added in the places of keys that were no longer needed."""
    taken = AllInFlight(0, 1, 2, 3)
    assert taken.busy.tolist() == [1, 2, 3], "a message without a key holds none"
    taken.acknowledge(0, 1)
    assert taken.busy.tolist() == [2, 3]
    taken.push(*range(10, 10 + others))
    taken.acknowledge(3)
    assert taken.busy.tolist() == [2]
    taken.acknowledge(2)
    assert not len(taken.busy)


def test_key_is_freed_in_the_table_of_the_current_order() -> None:
    """A message delivered under an earlier order frees its key in the current one."""
    taken, other = AllInFlight(1, 2, 3), AllInFlight(3, 2, 1)
    taken.order = other.order
    taken.acknowledge(1)
    assert other.busy.tolist() == [2, 3]
