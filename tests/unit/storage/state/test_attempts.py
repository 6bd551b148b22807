"""Attempts counted so far, as bytes."""

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
def test_a_table_of_attempts_comes_back_as_it_was(rows: list[tuple[int, int, int, int]]) -> None:
    """V4: epoch (attempt) and next time survive a restart."""
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
def test_what_is_stored_follows_what_lives(stated: list[int], live: int) -> None:
    """Q6: bounded parts and rows; what is stated anew is paid for by what was stated before."""
    parts = Parts()
    numbers: list[int] = []
    restated = 0
    for rows in stated:
        if parts.wants_rewrite(live):
            assert parts.rewrite() == len(numbers)
            numbers.append(parts.add(live))
            restated += live
        else:
            numbers.append(parts.add(rows))
        assert numbers == list(range(len(numbers)))
        assert parts.parts <= 64 + 2 + 1
        assert parts.rows <= 65_536 + 2 * live + rows
    assert restated <= max(1, len(stated) // 64) * live + sum(stated)
    assert not Parts().wants_rewrite(0)
    assert parts.wants_rewrite(0) is bool(stated)


def test_what_is_stored_is_counted_by_its_size() -> None:
    table = AttemptTable(*(np.arange(3) for _ in range(4)))
    stored = [(4, encode_attempts(table)), (9, encode_attempts(table))]
    assert Parts.of(stored) == Parts(10, 2, 6)
    assert Parts.of([]) == Parts()
