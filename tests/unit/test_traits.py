"""Traits: priority and key in 32 bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.message import DEFAULT_PRIORITY, Blobs, MessageBatch, concat_columns
from escapement.traits import (
    HASHED_BYTES,
    KEY_HASHES,
    hash_keys,
    have_keys,
    key_slots,
    may_have_key,
    priorities_of,
    slot_of,
    slots_of_key_hashes,
    traits_of,
    traits_of_keys,
)


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("", 0x811C ^ 0x9DC5),
        ("a", 0xE40C ^ 0x292C),
        ("foobar", 0xBF9C ^ 0xF968),
        ("user-1", 0x8C27),
        ("f" * 300, 0x72DF),
    ],
)
def test_slot_of_a_key_never_changes(key: str, slot: int) -> None:
    """V16: slots are part of the protocol and of files. The first three are FNV's test vectors."""
    assert slot_of(key) == slot_of(key.encode()) == slot
    assert slot_of("f" * HASHED_BYTES) == slot_of("f" * 300)


@given(st.lists(st.binary(max_size=12) | st.binary(min_size=250, max_size=270), max_size=40))
def test_keys_in_columns_have_the_same_slots_and_hashes_as_single_keys(keys: list[bytes]) -> None:
    traits = traits_of_keys(Blobs.of(keys))
    assert key_slots(traits).tolist() == [slot_of(key) for key in keys]
    assert slots_of_key_hashes(hash_keys(traits)).tolist() == [slot_of(key) for key in keys]
    alone = [int(traits_of_keys(Blobs.of([key]))[0]) for key in keys]
    assert traits.tolist() == alone
    assert have_keys(traits).all()
    assert (priorities_of(traits) == DEFAULT_PRIORITY).all()


def test_few_keys_share_their_hash() -> None:
    """Q9: keys with equal hashes wait for each other."""
    key_hashes = hash_keys(traits_of_keys(Blobs.of([b"key-%d" % n for n in range(100_000)])))
    assert key_hashes.max() < KEY_HASHES
    assert 100_000 - len(np.unique(key_hashes)) < 1000


@given(
    st.lists(
        st.tuples(st.binary(max_size=5), st.integers(0, 255) | st.just(DEFAULT_PRIORITY)),
        max_size=40,
    ),
    st.booleans(),
    st.booleans(),
)
def test_traits_contain_priority_and_key(
    rows: list[tuple[bytes, int]], keyed: bool, graded: bool
) -> None:
    """V5, V16."""
    batch = MessageBatch(
        Blobs.empty(len(rows)),
        Blobs.of([key for key, _ in rows]) if keyed else None,
        None,
        np.array([priority for _, priority in rows], np.uint8) if graded else None,
    )
    expected = [(key if keyed else b"", p if graded else DEFAULT_PRIORITY) for key, p in rows]
    traits = traits_of(batch)
    if traits is None:
        assert all(row == (b"", DEFAULT_PRIORITY) for row in expected)
        return
    assert priorities_of(traits).tolist() == [priority for _, priority in expected]
    assert have_keys(traits).tolist() == [bool(key) for key, _ in expected]
    assert key_slots(traits).tolist() == [slot_of(key) if key else 0 for key, _ in expected]


@given(st.lists(st.binary(max_size=2), max_size=20), st.binary(max_size=2), st.integers(0, 255))
def test_every_message_with_the_hash_of_a_key_may_have_that_key(
    keys: list[bytes], sought: bytes, priority: int
) -> None:
    """B1, B6: no message with the key is missed."""
    priorities = np.full(len(keys), priority, np.uint8)
    batch = MessageBatch(Blobs.empty(len(keys)), Blobs.of(keys), None, priorities)
    found = may_have_key(traits_of(batch), [sought], len(keys)).tolist()
    assert {row for row, key in enumerate(keys) if key == sought} <= set(found)
    key_hashes = hash_keys(traits_of_keys(Blobs.of([*keys, sought]))).tolist()
    for row, key in enumerate(keys):
        assert (row in found) == (key_hashes[row] == key_hashes[-1] and bool(key) == bool(sought))


def test_columns_without_traits_get_zeros_when_joined_with_others() -> None:
    traits = np.array([7, 8], np.uint32)
    assert concat_columns([(2, None), (1, None)], 0, np.uint32) is None
    joined = concat_columns([(1, None), (2, traits)], 0, np.uint32)
    assert joined is not None
    assert joined.tolist() == [0, 7, 8]
