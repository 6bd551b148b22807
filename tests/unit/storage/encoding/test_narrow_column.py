"""The encoding of integer columns in few bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.storage.encoding.narrow_column import decode_narrow, encode_narrow

wide = st.integers(-(2**63), 2**63 - 1)
near = wide.flatmap(
    lambda base: st.integers(0, 300).map(lambda above: min(base + above, 2**63 - 1))
)


@given(st.lists(wide, min_size=1) | st.lists(near, min_size=1), st.binary(max_size=4))
def test_narrow_column_decodes_to_the_same_column(values: list[int], behind: bytes) -> None:
    view = memoryview(encode_narrow(np.array(values, np.int64)) + behind)
    found, rest = decode_narrow(view, len(values))
    assert found.tolist() == values
    assert bytes(rest) == behind


@pytest.mark.parametrize(
    ("span", "width"), [(0, 0), (255, 1), (256, 2), (65_535, 2), (65_536, 4), (2**32, 8)]
)
def test_a_column_is_as_wide_as_its_span(span: int, width: int) -> None:
    assert len(encode_narrow(np.array([-5, span - 5]))) == 9 + 2 * width


@given(st.lists(wide, min_size=1), st.data())
def test_truncated_column_is_noticed(values: list[int], data: st.DataObject) -> None:
    written = encode_narrow(np.array(values, np.int64))
    cut = written[: data.draw(st.integers(0, len(written) - 1))]
    with pytest.raises(ValueError, match="column"):
        decode_narrow(memoryview(cut), len(values))
