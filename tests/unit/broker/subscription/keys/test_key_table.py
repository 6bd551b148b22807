"""A table of keys, compared with plain dictionaries."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.subscription.keys.key_table import NO_KEY, KeyTable
from escapement.broker.subscription.priorities.ready import Rows
from escapement.traits import HAS_KEY, KEY_HASHES, SLOTS

KEYS = st.lists(st.integers(0, 12), max_size=8)


@given(st.lists(st.tuples(st.sampled_from(["hold", "free", "head", "go"]), KEYS), max_size=30))
def test_key_keeps_its_data_while_it_is_busy_or_has_a_head(
    actions: list[tuple[str, list[int]]],
) -> None:
    """Q9: also while other keys are added and removed."""
    table = KeyTable(whole=False)
    busy: dict[int, int] = {}
    heads: dict[int, int] = {}
    for moment, (what, keys) in enumerate(actions):
        key_hashes = np.array(keys, np.int64)
        if what == "hold":
            at = table.find_or_add(key_hashes)
            table.busy[at], table.holders[at] = True, moment
            busy |= dict.fromkeys(keys, moment)
        elif what == "head":
            at = table.find_or_add(key_hashes)
            table.there[at], table.ranks[at], table.heads.offsets[at] = True, -moment, moment
            heads |= dict.fromkeys(keys, moment)
        else:
            at, known = table.find(key_hashes)
            (table.busy if what == "free" else table.there)[at[known]] = False
            for key in keys:
                (busy if what == "free" else heads).pop(key, None)
        table._check()
        everything = np.arange(13)
        at, known = table.find(everything)
        held = everything[known][table.busy[at[known]]]
        holders = table.holders[at[known]][table.busy[at[known]]].tolist()
        assert dict(zip(held.tolist(), holders, strict=True)) == busy
        first = everything[known][table.there[at[known]]]
        offsets = table.heads.offsets[at[known]][table.there[at[known]]].tolist()
        assert dict(zip(first.tolist(), offsets, strict=True)) == heads
        assert np.count_nonzero(table.busy) == len(busy)
        assert np.count_nonzero(table.there) == len(heads)
        assert (table.ranks[table.there] == -table.heads.offsets[table.there]).all()


def test_key_is_found_by_its_hash_and_by_its_slot() -> None:
    """V16, Q9: ranges consist of slots, and many keys may share a slot."""
    table = KeyTable(whole=False)
    traits = np.array([HAS_KEY | 7, HAS_KEY | 7 | 1 << 17, 0, HAS_KEY | 65_535], np.uint32)
    key_hashes = table.key_hashes_of(Rows.fresh(np.zeros(4, np.int64), np.arange(4), traits))
    assert key_hashes.tolist() == [7, 7 + SLOTS, NO_KEY, SLOTS - 1]
    assert key_hashes.max() == KEY_HASHES
    at = table.find_or_add(key_hashes[key_hashes != NO_KEY])
    table.there[at] = True
    assert np.flatnonzero(table.slots(table.there)).tolist() == [7, SLOTS - 1]
    wanted = np.zeros(SLOTS, bool)
    wanted[7] = True
    assert table.key_hashes[table.among(wanted) & table.there].tolist() == [7, 7 + SLOTS]


def test_unused_keys_take_no_space() -> None:
    """Q9: memory depends on ready and held messages, not on all keys ever used."""
    table = KeyTable(whole=False)
    at = table.find_or_add(np.array([5]))
    table.busy[at] = True
    for first in range(10, 10_000, 100):
        at = table.find_or_add(np.arange(first, first + 100))
        table.there[at] = True
        table._check()
        table.there[at] = False
    assert len(table.key_hashes) <= 404
    indexes, known = table.find(np.array([5]))
    assert known.all()
    assert table.busy[indexes].all()
