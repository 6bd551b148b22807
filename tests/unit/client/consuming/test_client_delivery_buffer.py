"""The delivery buffer: the order of messages, and the count of permits, against a simple model."""

from __future__ import annotations

from math import inf
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.client.ack_deadlines import AckDeadlines
from escapement.client.consuming.batch import Batch, Holder
from escapement.client.consuming.delivery_buffer import DeliveryBuffer
from escapement.client.delivery import Source
from escapement.errors import RemoteProtocolError
from escapement.message import Blobs, MessageBatch

PERMITS = 10
NONE = AckDeadlines()
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "pop", "pop_batch", "grant", "wait", "seek", "lose"]),
        st.integers(0),
    ),
    max_size=60,
)


def batch_of(first: int, count: int, deadlines: AckDeadlines = NONE) -> Batch:
    offsets = np.arange(first, first + count)
    messages = MessageBatch(Blobs.of([b"%d" % offset for offset in offsets]))
    # The buffer does not use the consumer of a batch.
    source = Source(bytes(16), 1, "s", 0)
    return Batch(cast("Holder", None), offsets, offsets, None, None, messages, source, deadlines)


class Model:
    """A delivery buffer as lists: for each delivery, the offsets and deadlines of its messages."""

    def __init__(self) -> None:
        self.granted, self.free = PERMITS, 0
        self.deliveries: list[list[tuple[int, float]]] = []

    @property
    def waiting(self) -> list[int]:
        return [offset for delivery in self.deliveries for offset, _ in delivery]

    def put(self, first: int, deadlines_s: list[float]) -> None:
        self.deliveries.append(list(enumerate(deadlines_s, first)))
        self.granted -= len(deadlines_s)

    def take(self, count: int) -> list[int]:
        """Take messages of the first delivery, if there is one."""
        taken = [self.deliveries[0].pop(0)[0] for _ in range(count)] if self.deliveries else []
        self._took(len(taken))
        return taken

    def discard_late(self, now_s: float) -> int:
        late = 0
        while self.deliveries and any(until_s < now_s for _, until_s in self.deliveries[0]):
            kept = [one for one in self.deliveries[0] if one[1] >= now_s]
            late += len(self.deliveries[0]) - len(kept)
            self.deliveries[0] = kept
            self._took(0)
        self.free += late
        return late

    def _took(self, count: int) -> None:
        self.free += count
        self.deliveries = [delivery for delivery in self.deliveries if delivery]


@given(STEPS)
def test_messages_come_in_order_and_permits_add_up(steps: list[tuple[str, int]]) -> None:
    """V6, V3: permits are granted, used or free. Late messages leave the buffer, and no others."""
    buffer, model, offset, now_s = DeliveryBuffer(PERMITS), Model(), 0, 0
    assert buffer.grant_all() == PERMITS
    for step, number in steps:
        if step == "put" and model.granted:
            count = number % model.granted + 1
            deadlines, each_s = deadlines_of(now_s, count, number % 5)
            buffer.put(batch_of(offset, count, deadlines))
            model.put(offset, each_s)
            offset += count
        elif step == "pop":
            message = buffer.pop()
            found = [] if message is None else [(message.offset, message.payload)]
            assert found == [(taken, b"%d" % taken) for taken in model.take(1)]
        elif step == "pop_batch":
            batch = buffer.pop_batch()
            found = [] if batch is None else batch.offsets.tolist()
            assert found == model.take(len(found))
            assert (batch is None) == (not found)
        elif step == "grant":
            again = buffer.due_credit()
            assert again == (model.free if 2 * model.free >= PERMITS else 0)
            model.granted, model.free = model.granted + again, model.free - again
        elif step == "wait":
            now_s += number % 3
            assert buffer.discard_late(now_s) == model.discard_late(now_s)
        elif step == "seek":
            assert buffer.grant_all() == PERMITS - model.granted
            model = Model()
        elif step == "lose":
            buffer.clear()
            assert buffer.grant_all() == PERMITS
            model = Model()
        assert buffer.waiting().tolist() == model.waiting
        assert buffer.empty == (not model.waiting)
        assert model.granted + len(model.waiting) + model.free == PERMITS
    with pytest.raises(RemoteProtocolError, match="2 messages more than it had permits for"):
        buffer.put(batch_of(offset, model.granted + 2))


def deadlines_of(now_s: int, count: int, kind: int) -> tuple[AckDeadlines, list[float]]:
    """Return the deadlines of a delivery: none, the same for all messages, or different ones."""
    if kind == 0:
        return AckDeadlines.after(now_s, 0, None), [inf] * count
    if kind < 3:
        return AckDeadlines.after(now_s, kind * 1000, None), [now_s + kind] * count
    waits_s = [1 + at * kind % 5 for at in range(count)]
    waits_ms = np.array(waits_s) * 1000
    deadlines = AckDeadlines.after(now_s, int(waits_ms.min()), waits_ms)
    return deadlines, [now_s + wait_s for wait_s in waits_s]


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
