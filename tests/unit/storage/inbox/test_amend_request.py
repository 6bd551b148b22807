"""Requests in inbox entries: their encoding, and which of them counts for a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.errors import InboxEntryDamaged
from escapement.storage.inbox.amend_request import (
    AmendRequest,
    AmendRequests,
    LaterRequests,
    amend_entry,
    decode_amend_requests,
    with_bound,
)
from escapement.storage.inbox.entry import decode_inbox_entry, encode_inbox_entry

names = st.sampled_from([(b"k", b"", -1), (b"l", b"", -1), (b"", b"d" * 16, -1), (b"", b"", 7)])
requests = st.lists(
    st.builds(
        lambda name, cancels, at_ms: AmendRequest(*name, cancels, -1 if cancels else at_ms),
        names,
        st.booleans(),
        st.integers(-1, 9),
    ),
    min_size=1,
    max_size=9,
)


@given(requests, st.integers(-1, 1 << 60))
def test_decoded_requests_are_those_encoded(asked: list[AmendRequest], bound: int) -> None:
    data = encode_inbox_entry(amend_entry("t", "s", asked))
    assert decode_amend_requests(data) == AmendRequests(-1, asked)
    data = with_bound(AmendRequests(-1, asked), bound)
    assert decode_amend_requests(data) == AmendRequests(bound, asked)
    with pytest.raises(InboxEntryDamaged):
        decode_inbox_entry(data)
    for broken in (data[:-1], data[:20] + bytes([data[20] ^ 1]) + data[21:]):
        with pytest.raises(InboxEntryDamaged):
            decode_amend_requests(broken)


@given(requests, st.sampled_from([b"k", b"m", b""]), st.sampled_from([b"d" * 16, bytes(16)]))
def test_cancel_counts_or_else_the_last_request(
    asked: list[AmendRequest], key: bytes, dedup: bytes
) -> None:
    mine = [one for one in asked if (one.key and one.key == key) or one.dedup == dedup]
    later = LaterRequests()
    for one in reversed(asked):
        later.add([one])
    last = later.last(key, dedup)
    if any(one.cancels for one in mine):
        assert last is not None
        assert last.cancels
    else:
        assert last == (mine[-1] if mine else None)
