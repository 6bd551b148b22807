"""Any bytes as frames, blocks, segments and manifests raise only documented errors."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.targets import TARGETS, seeds

# Memory of a decoded input, in times of its size, with some for the objects of any size.
MOST_TIMES = 64
MOST_MORE_BYTES = 256 * 1024


@st.composite
def mutated(draw: st.DrawFn, target: str) -> bytes:
    """Draw valid input in which some bytes are changed, removed or inserted."""
    data = bytearray(draw(st.sampled_from(seeds(target))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 2)):
            case 0:
                del data[at : at + draw(st.integers(1, 8))]
            case 1:
                data[at:at] = draw(st.binary(max_size=8))
            case _:
                patch = draw(st.sampled_from([b"\xff" * 8, b"\x7f", bytes(8)]) | st.binary())
                data[at : at + len(patch)] = patch
    return bytes(data)


@pytest.mark.parametrize("target", TARGETS)
def test_valid_input_counts(target: str) -> None:
    assert all(TARGETS[target](seed) > 0 for seed in seeds(target))


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=200)
@given(data=st.data())
def test_any_bytes_raise_only_documented_errors_in_bounded_memory(
    target: str, data: st.DataObject
) -> None:
    """O3, invariant 9: `make fuzz` does the same with millions of inputs."""
    stream = data.draw(st.binary(max_size=400) | mutated(target))
    tracemalloc.start()
    try:
        TARGETS[target](stream)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MOST_TIMES * len(stream) + MOST_MORE_BYTES
