"""Columns of offsets with impossible values under a valid checksum."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal.isal_zlib import crc32

from escapement.errors import LogDamaged
from escapement.storage.offsets.offset_column import decode_offsets

EXTREME = st.sampled_from(
    [0, 1, 5, 2**31, 2**32 - 1, 2**40, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
)


def sealed_column(first: int, lengths: list[int], distances: list[int]) -> bytes:
    """Encode runs of offsets with 8 bytes for each length and distance, without any check."""
    body = struct.pack("<BBBxIq", 2, 8, 8, len(lengths), first)
    body += struct.pack(f"<{len(lengths) + len(distances)}Q", *lengths, *distances)
    return body + struct.pack("<I", crc32(body))


@given(st.integers(0, 2**62), st.lists(EXTREME, min_size=1, max_size=3), st.data())
def test_offsets_ascend_or_the_column_counts_as_damaged(
    first: int, lengths: list[int], data: st.DataObject
) -> None:
    distances = data.draw(st.lists(EXTREME, min_size=len(lengths) - 1, max_size=len(lengths) - 1))
    with suppress(LogDamaged):
        offsets = decode_offsets(sealed_column(first, lengths, distances))
        assert offsets[0] >= 0
        assert (np.diff(offsets) > 0).all()


def test_column_of_more_offsets_than_fit_into_memory_counts_as_damaged() -> None:
    with pytest.raises(LogDamaged, match="has more than"):
        decode_offsets(sealed_column(0, [2**40], []))
