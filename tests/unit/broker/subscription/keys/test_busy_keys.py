"""Busy keys, compared with a plain set of messages that hold their keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.subscription.keys.busy_keys import BusyKeys
from escapement.broker.subscription.keys.key_table import KeyTable
from escapement.broker.subscription.priorities.ready import Rows
from escapement.storage.offsets import OffsetSet
from escapement.traits import HAS_KEY

# Four messages have each of the keys 0, 1 and 2, and four have no key.
OFFSETS = range(16)
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["take", "release", "settle"]), st.sets(st.sampled_from(OFFSETS))),
    max_size=20,
)


def key_hash(offset: int, whole: bool) -> int | None:
    """Return the key hash of a message, None if it has no key."""
    if whole:
        return 0
    return offset % 4 if offset % 4 < 3 else None


def rows(offsets: set[int]) -> Rows:
    column = np.array(sorted(offsets, key=lambda offset: offset * 7 % 16), np.int64)
    traits = np.where(column % 4 < 3, HAS_KEY | column % 4, 0).astype(np.uint32)
    return Rows.fresh(column * 1000, column, traits)


def offset_set(offsets: set[int]) -> OffsetSet:
    made = OffsetSet()
    made.add(np.array(sorted(offsets), np.int64))
    return made


@given(st.booleans(), ACTIONS)
def test_key_is_busy_while_any_message_holds_it(
    whole: bool, actions: list[tuple[str, set[int]]]
) -> None:
    """Q9: several messages may hold a key that were in flight before the policy changed."""
    table = KeyTable(whole)
    keys = BusyKeys(table)
    holding: set[int] = set()
    for action, offsets in actions:
        if action == "take":
            keys.take(rows(offsets))
            holding |= {offset for offset in offsets if key_hash(offset, whole) is not None}
        elif action == "release":
            keys.release(rows(offsets))
            holding -= offsets
        else:
            keys.settle(offset_set(offsets))
            holding &= offsets
        keys._check()
        table._check()
        busy = table.key_hashes[table.busy].tolist()
        assert sorted(busy) == sorted({key_hash(offset, whole) for offset in holding})
        assert set(table.holders[table.busy].tolist()) <= holding


def test_rows_without_traits_hold_nothing() -> None:
    """Q9: messages without a key are not kept in order."""
    table = KeyTable(whole=False)
    keys = BusyKeys(table)
    keys.take(Rows.fresh(np.arange(3), np.arange(3)))
    assert not table.busy.any()
    keys.release(Rows.fresh(np.arange(3), np.arange(3)))
    keys._check()
