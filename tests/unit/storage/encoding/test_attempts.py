"""Attempt counts and their encoding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.errors import LogDamaged
from escapement.storage.encoding.attempts import (
    AttemptTable,
    Parts,
    decode_attempts,
    encode_attempts,
)

int64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(int64, int64, int64, int64), max_size=20))
def test_table_of_attempts_decodes_to_the_same_table(rows: list[tuple[int, int, int, int]]) -> None:
    """V4: attempts and their next times survive a restart."""
    columns = np.array(rows, np.int64).reshape(len(rows), 4).T
    back = decode_attempts(encode_attempts(AttemptTable(*columns)))
    assert np.array_equal(np.array(back), columns)


@given(st.binary(min_size=1, max_size=80), st.integers(0, 43), st.integers(1, 255))
def test_damage_is_noticed(garbage: bytes, at: int, flip: int) -> None:
    with pytest.raises(LogDamaged):
        decode_attempts(garbage)
    one = np.array([1], np.int64)
    data = bytearray(encode_attempts(AttemptTable(one, one, one, one)))
    if 1 <= at <= 3:
        return  # padding
    data[at] ^= flip
    with pytest.raises(LogDamaged):
        decode_attempts(data)


@given(st.lists(st.integers(1, 50_000), max_size=300), st.integers(1, 100_000))
def test_stored_attempts_are_bounded_by_the_live_ones(added: list[int], live: int) -> None:
    """Q6: parts and rows are bounded, and rewriting costs no more than the rows written before."""
    parts = Parts()
    numbers: list[int] = []
    rewritten = 0
    for rows in added:
        if parts.wants_rewrite(live):
            assert parts.rewrite() == len(numbers)
            numbers.append(parts.add(live))
            rewritten += live
        else:
            numbers.append(parts.add(rows))
        assert numbers == list(range(len(numbers)))
        assert parts.parts <= 64 + 2 + 1
        assert parts.rows <= 65_536 + 2 * live + rows
    assert rewritten <= max(1, len(added) // 64) * live + sum(added)
    assert not Parts().wants_rewrite(0)
    assert parts.wants_rewrite(0) is bool(added)


def test_stored_parts_are_counted_with_their_rows() -> None:
    table = AttemptTable(*(np.arange(3) for _ in range(4)))
    stored = [(4, encode_attempts(table)), (9, encode_attempts(table))]
    assert Parts.of(stored) == Parts(10, 2, 6)
    assert Parts.of([]) == Parts()
