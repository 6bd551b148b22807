"""The beginning of requests in a step of the inbox, compared with a naive model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.inbox.amended_entries import begin
from escapement.broker.inbox.decoded_entries import DecodedEntry
from escapement.dedup import NO_DIGEST, column
from escapement.message import NO_TIMES, Blobs, MessageBatch, Times
from escapement.storage.inbox.amend_request import (
    AmendRequest,
    AmendRequests,
    decode_amend_requests,
)
from escapement.storage.inbox.entry import Content, decode_inbox_entry

BOUND = 70
EARLIER = 50
D = bytes(range(16))


class Told(NamedTuple):
    """A message of the model."""

    payload: bytes
    key: bytes
    dedup: bytes
    delay_ms: int
    at_ms: int


messages = st.lists(
    st.builds(
        Told,
        st.binary(max_size=3),
        st.sampled_from([b"", b"k", b"l"]),
        st.sampled_from([NO_DIGEST, D]),
        st.sampled_from([-1, 5]),
        st.sampled_from([-1, 6]),
    ),
    min_size=1,
    max_size=4,
)
requests = st.lists(
    st.builds(
        lambda name, cancels, at_ms: AmendRequest(*name, -1, cancels, -1 if cancels else at_ms),
        st.sampled_from([(b"k", b""), (b"l", b""), (b"", D)]),
        st.booleans(),
        st.integers(-1, 9),
    ),
    min_size=1,
    max_size=3,
)
steps = st.lists(
    st.one_of(messages, st.builds(AmendRequests, st.sampled_from([-1, -1, EARLIER]), requests)),
    max_size=8,
)


def content_of(told: list[Told], plain: bool) -> Content:
    payloads, keys, dedups, delays_ms, ats_ms = zip(*told, strict=True)
    batch = MessageBatch(Blobs.of(payloads), Blobs.of(keys), None, None)
    times = Times(np.array(delays_ms), np.array(ats_ms))
    times = NO_TIMES if plain and not times.given else times
    digests = None if plain and set(dedups) == {NO_DIGEST} else column(dedups)
    return Content(batch, times, batch.encode(), digests)


def told_by(content: Content) -> list[Told]:
    batch, times, body, digests = content
    count = len(batch)
    assert MessageBatch.decode(body).payloads.to_list() == batch.payloads.to_list()
    none = [-1] * count
    return [
        Told(*one)
        for one in zip(
            batch.payloads.to_list(),
            batch.strings(batch.keys),
            [NO_DIGEST] * count if digests is None else digests.tolist(),
            none if times.delay_ms is None else times.delay_ms.tolist(),
            none if times.at_ms is None else times.at_ms.tolist(),
            strict=True,
        )
    ]


def naive(step: list[list[Told] | AmendRequests]) -> list[list[Told]]:
    """Apply each request that is not begun to the messages before it."""
    seen: list[list[Told]] = []
    final: set[tuple[int, int]] = set()
    for entry in step:
        if not isinstance(entry, AmendRequests):
            seen.append(list(entry))
        elif entry.bound < 0:
            for one in entry.requests:
                for at, told in enumerate(seen):
                    for row, message in enumerate(told):
                        if (at, row) in final:
                            continue
                        if message.key == one.key if one.key else message.dedup == one.dedup:
                            told[row] = message._replace(delay_ms=-1, at_ms=one.at_ms)
                            if one.cancels:
                                final.add((at, row))
    return [
        [message for row, message in enumerate(told) if (at, row) not in final]
        for at, told in enumerate(seen)
    ]


@given(steps, st.booleans())
def test_begun_requests_have_changed_the_messages_before_them(
    step: list[list[Told] | AmendRequests], plain: bool
) -> None:
    entries = [
        DecodedEntry(
            id, None, entry if isinstance(entry, AmendRequests) else content_of(entry, plain)
        )
        for id, entry in enumerate(step)
    ]
    begun = begin(entries, BOUND)
    left = {entry.id: entry.content for entry in begun.entries}
    assert sorted([*left, *begun.emptied]) == list(range(len(step)))
    wanted = iter(naive(step))
    for id, entry in enumerate(step):
        if isinstance(entry, AmendRequests):
            bound = BOUND if entry.bound < 0 else entry.bound
            assert left[id] == entry._replace(bound=bound)
            assert (id in begun.rewritten) == (entry.bound < 0)
            if id in begun.rewritten:
                assert decode_amend_requests(begun.rewritten[id]) == left[id]
            continue
        messages = next(wanted)
        assert (id in begun.emptied) == (not messages)
        if messages:
            content = left[id]
            assert isinstance(content, Content)
            assert told_by(content) == messages
            if id in begun.rewritten:
                assert told_by(decode_inbox_entry(begun.rewritten[id])) == messages
            else:
                assert messages == entry
