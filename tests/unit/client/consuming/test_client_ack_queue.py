"""The ack queue with a broker that fails in every possible way."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.client.connection.retry import Retry
from escapement.client.consuming.ack_queue import AckQueue, PendingAck
from escapement.errors import Conflict, StorageUnavailable


@settings(max_examples=150)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ack"), st.lists(st.integers(0, 50), min_size=1, max_size=5)),
            st.tuples(st.just("take"), st.sampled_from([0.0, 0.001, 0.01])),
            st.tuples(st.just("answer"), st.sampled_from(["", "", "later", "never"])),
            st.just(("cut", None)),
        ),
        max_size=40,
    )
)
def test_every_ack_is_answered_or_reported_as_refused(steps: list[tuple]) -> None:
    ack_queue = AckQueue(Retry(chance=lambda: 1.0))
    now_s = 0.0
    under_way: deque[PendingAck] = deque()
    durable: set[int] = set()
    pending_acks: list[tuple[PendingAck, list[int]]] = []

    def answer(fault: str) -> None:
        pending_ack = under_way.popleft()
        if fault:
            error = StorageUnavailable("away") if fault == "later" else Conflict("no")
            ack_queue.refused(pending_ack, error, now_s)
            return
        offsets, firsts, lasts = pending_ack.columns()
        durable.update([] if offsets is None else offsets.tolist())
        if firsts is not None and lasts is not None:
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
                durable.update(range(first, last))
        ack_queue.answered(pending_ack, 1)

    for kind, value in steps:
        if kind == "ack":
            pending_ack = ack_queue.gathering()
            before = pending_ack.rows
            pending_ack.add(np.array(value, np.int64))
            ack_queue.added(pending_ack.rows - before)
            pending_acks.append((pending_ack, value))
        elif kind == "take":
            now_s += value
            under_way.extend(ack_queue.take(now_s)[0])
        elif kind == "answer" and under_way:
            answer(value)
        elif kind == "cut":
            under_way.clear()
            ack_queue.lost()
    for _ in range(100):
        now_s += 2
        under_way.extend(ack_queue.take(now_s)[0])
        while under_way:
            answer("")
    assert ack_queue.rows == 0
    assert ack_queue.unsettled == []
    for pending_ack, offsets in pending_acks:
        assert pending_ack.settled
        assert pending_ack.error is not None or set(offsets) <= durable


def test_offsets_without_gaps_are_acknowledged_as_a_range() -> None:
    pending_ack = PendingAck()
    pending_ack.add(np.arange(100, 4196))
    pending_ack.add(np.array([5, 3, 4]))
    pending_ack.add_one(9)
    offsets, firsts, lasts = pending_ack.columns()
    assert offsets is not None
    assert firsts is not None
    assert lasts is not None
    assert offsets.tolist() == [5, 3, 4, 9]
    assert (firsts.tolist(), lasts.tolist()) == ([100], [4196])
    assert pending_ack.rows == 5
