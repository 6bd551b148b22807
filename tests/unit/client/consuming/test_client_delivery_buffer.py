"""The delivery buffer: the order of messages, and the count of permits, against a simple model."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.client.consuming.batch import Batch, Holder
from escapement.client.consuming.delivery_buffer import DeliveryBuffer
from escapement.client.delivery import Source
from escapement.errors import RemoteProtocolError
from escapement.message import Blobs, MessageBatch

PERMITS = 10
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "pop", "pop_batch", "grant", "seek", "lose"]), st.integers(0)
    ),
    max_size=60,
)


def batch_of(first: int, count: int) -> Batch:
    offsets = np.arange(first, first + count)
    messages = MessageBatch(Blobs.of([b"%d" % offset for offset in offsets]))
    # The buffer does not use the consumer of a batch.
    source = Source(bytes(16), 1, "s", 0)
    return Batch(cast("Holder", None), offsets, offsets, None, None, messages, source)


@given(STEPS)
def test_messages_come_in_order_and_permits_add_up(steps: list[tuple[str, int]]) -> None:
    """B5: permits are granted, used by a message in the buffer, or free."""
    buffer = DeliveryBuffer(PERMITS)
    granted, waiting, free, offset = buffer.grant_all(), list[int](), 0, 0
    assert granted == PERMITS
    for step, number in steps:
        if step == "put" and granted:
            count = number % granted + 1
            buffer.put(batch_of(offset, count))
            waiting += range(offset, offset + count)
            offset += count
            granted -= count
        elif step == "pop":
            message = buffer.pop()
            assert (message is None) == (not waiting)
            if message is not None:
                assert (message.offset, message.payload) == (waiting[0], b"%d" % waiting[0])
                del waiting[0]
                free += 1
        elif step == "pop_batch":
            batch = buffer.pop_batch()
            assert (batch is None) == (not waiting)
            if batch is not None:
                assert batch.offsets.tolist() == waiting[: len(batch)]
                del waiting[: len(batch)]
                free += len(batch)
        elif step == "grant":
            again = buffer.due_credit()
            assert again == (free if 2 * free >= PERMITS else 0)
            granted, free = granted + again, free - again
        elif step == "seek":
            assert buffer.grant_all() == PERMITS - granted
            granted, waiting, free = PERMITS, [], 0
        elif step == "lose":
            buffer.clear()
            assert buffer.grant_all() == PERMITS
            granted, waiting, free = PERMITS, [], 0
        assert buffer.waiting().tolist() == waiting
        assert buffer.empty == (not waiting)
        assert granted + len(waiting) + free == PERMITS
    with pytest.raises(RemoteProtocolError, match="2 messages more than it had permits for"):
        buffer.put(batch_of(offset, granted + 2))


def test_batch_after_single_messages_is_the_rest_of_its_delivery() -> None:
    """B5."""
    buffer = DeliveryBuffer(PERMITS)
    buffer.grant_all()
    buffer.put(batch_of(0, 4))
    buffer.put(batch_of(4, 2))
    assert [buffer.pop() is not None for _ in range(3)] == [True] * 3
    assert [batch.offsets.tolist() for _ in range(2) if (batch := buffer.pop_batch())] == [
        [3],
        [4, 5],
    ]
    assert buffer.pop_batch() is None
    assert buffer.pop() is None
    assert buffer.due_credit() == 6
