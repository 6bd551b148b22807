"""Frames are decoded the same however the reads are cut; invalid bytes raise only ValueError."""

from __future__ import annotations

import struct
import tracemalloc

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.protocol import frame
from escapement.protocol.limits import MAX_FRAME_BYTES


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


@settings(max_examples=60)
@given(
    st.lists(st.binary(min_size=2, max_size=9000), max_size=6),
    st.lists(st.integers(1, 7000), min_size=1, max_size=8),
)
def test_frames_are_decoded_the_same_however_the_reads_are_cut(
    payloads: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(map(framed, payloads))
    decoder = frame.FrameDecoder(10_000)
    found: list[bytes] = []
    at = turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        decoder.receive_data(stream[at : at + size])
        at, turn = at + size, turn + 1
        while (piece := decoder.next_frame()) is not None:
            found.append(bytes(piece))
    assert found == payloads
    assert len(decoder) == 0


@pytest.mark.parametrize("rest", [b"\x00", b"\x00\x00\x00\x09ab"])
def test_taken_frame_is_freed_although_the_next_one_has_begun(rest: bytes) -> None:
    """Invariant 9: a peer that waits in the middle of a small frame holds no large one."""
    decoder = frame.FrameDecoder(MAX_FRAME_BYTES)
    tracemalloc.start()
    try:
        before_bytes, _ = tracemalloc.get_traced_memory()
        decoder.receive_data(framed(bytes(8_000_000)) + rest)
        taken = decoder.next_frame()
        assert taken is not None
        taken.release()
        assert decoder.next_frame() is None
        held_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
    finally:
        tracemalloc.stop()
    assert len(decoder) == len(rest)
    assert held_bytes < 10_000


@pytest.mark.parametrize("size", [0, 1, 1001, 2**32 - 1])
def test_length_outside_the_bounds_is_refused_before_the_frame_arrives(size: int) -> None:
    decoder = frame.FrameDecoder(1000)
    decoder.receive_data(struct.pack(">I", size))
    with pytest.raises(ValueError, match=r"outside 2\.\.1000"):
        decoder.next_frame()


def test_taken_frame_can_be_freed_although_data_behind_it_waits() -> None:
    """Invariant 9: the broker waits before it takes the next frame."""
    small = framed(bytes(10))
    decoder = frame.FrameDecoder(MAX_FRAME_BYTES)
    decoder.receive_data(framed(bytes(MAX_FRAME_BYTES // 2)) + small + small)
    assert decoder.next_frame() is not None
    decoder.free_taken()
    assert len(decoder._chunk) == 2 * len(small)
    decoder.next_frame()
    decoder.free_taken()
    assert len(decoder._chunk) == 2 * len(small), "small frames are not worth a copy"
    assert decoder.next_frame() is not None


def test_receiving_without_taking_frames_fails_an_assertion() -> None:
    decoder = frame.FrameDecoder(1000)
    for _ in range(4):
        decoder.receive_data(bytes(1024 * 1024))
    with pytest.raises(AssertionError):
        decoder.receive_data(bytes(1024 * 1024))


def test_the_type_is_known_before_anything_is_unpacked() -> None:
    assert frame.frame_type(memoryview(b"\x92\x07")) == 7
    for head in (b"\x90\x07", b"\xdc\x00", b"\x92\x80", b"\x07\x92"):
        with pytest.raises(ValueError, match="no command"):
            frame.frame_type(memoryview(head))


def test_deep_wide_and_oversized_values_do_not_unpack() -> None:
    deep = b"\x92\x01" + b"\x91" * 5000 + b"\x01"
    wide = msgpack.packb([1, [[] for _ in range(2000)]])
    long = b"\x92\x01\xdd\xff\xff\xff\xff"
    maps = b"\x92\x01" + b"\x81\xa1a" * 2000 + b"\xc0"
    for bomb in (deep, wide, long, maps):
        for most in (1, 1000):
            with pytest.raises(ValueError, match="does not unpack"):
                frame.unpack(memoryview(bomb), most, 10_000)


def test_a_flat_frame_holds_no_list_and_no_map() -> None:
    for value in ([], {}, [[1]], {"a": 1}):
        with pytest.raises(ValueError, match="does not unpack"):
            frame.unpack(memoryview(msgpack.packb([1, value])), 1, 10)
    assert frame.unpack(memoryview(msgpack.packb([1, 2, b"x"])), 1, 10) == [2, b"x"]


def test_lists_and_maps_of_a_frame_have_a_bounded_number_of_items_together() -> None:
    """Invariant 9: a short string takes twenty times its bytes."""
    packed = memoryview(msgpack.packb([1, {"a": [2] * 40, "b": {"c": [3] * 55}}]))
    assert frame.unpack(packed, 10, 100)
    with pytest.raises(ValueError, match="more than 99 items"):
        frame.unpack(packed, 10, 99)


@pytest.mark.parametrize("cut", range(8))
def test_head_is_known_before_the_frame_is_whole(cut: int) -> None:
    stream = framed(b"\x92\x28" + bytes(100))
    decoder = frame.FrameDecoder(MAX_FRAME_BYTES)
    decoder.receive_data(framed(b"\x92\x07") + stream[:cut])
    assert decoder.head() == (2, 7)
    assert decoder.next_frame() is not None
    assert decoder.head() == ((102, 40) if cut >= 6 else None)
    decoder.receive_data(stream[cut:])
    assert decoder.head() == (102, 40)
    assert decoder.next_frame() is not None
    assert decoder.head() is None


def test_text_that_is_not_utf8_does_not_unpack() -> None:
    with pytest.raises(ValueError, match="does not unpack"):
        frame.unpack(memoryview(b"\x92\x01\xa2\xff\xfe"), 1, 10)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 16_383, 16_384, 70_000])
def test_a_long_body_is_packed_without_a_copy(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    buffers = frame.pack([12, 5, "name", body])
    if size >= 16_384:
        assert buffers[-1] is body
    decoder = frame.FrameDecoder(MAX_FRAME_BYTES)
    for buffer in buffers:
        decoder.receive_data(buffer)
    piece = decoder.next_frame()
    assert piece is not None
    assert frame.frame_type(piece) == 12
    assert frame.unpack(piece, 1, 10) == [5, "name", body]


@settings(max_examples=200)
@given(st.binary(min_size=2, max_size=200), st.sampled_from([1, 50]))
def test_random_bytes_raise_only_value_error(data: bytes, most: int) -> None:
    try:
        frame.frame_type(memoryview(data))
        frame.unpack(memoryview(data), most, 100)
    except ValueError:
        pass
