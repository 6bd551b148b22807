"""Many concurrent cancels, reschedules and deliveries of the same messages."""

from __future__ import annotations

import random
from datetime import timedelta

import numpy as np
import pytest
import trio
from trio.testing import MockClock

import escapement
from escapement import AmendStatus, testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.message import Blobs, MessageBatch, Times

CONFIG = BrokerConfig(
    ack_wait_ms=86_400_000,
    limits=BrokerLimits(ready_messages=2_000, window_messages=10_000, deliver_messages=500),
    seed=0,
)
SPAN_MS = 60_000


class Race:
    """Consumers that receive due messages while two tasks cancel and reschedule them."""

    def __init__(self, world: testing.World, broker: escapement.Broker, count: int) -> None:
        self.world = world
        self.broker = broker
        self.rng = random.Random(count)
        self.delivered = np.zeros(count, np.int64)
        self.delivered_ms = np.zeros(count, np.int64)  # when each message was delivered
        self.cancelled = np.zeros(count, bool)
        self.due_ms = np.zeros(count, np.int64)
        self.count = count
        self.step = max(count // 200, 10)

    async def publish(self) -> None:
        numbers = np.random.default_rng(self.count)
        self.due_ms[:] = self.world.clock.now_ms() + numbers.integers(0, SPAN_MS, self.count)
        await self.broker.admin("subscriptions.create", topic="t", subscription="s")
        producer = await self.broker.producer("t")
        for low in range(0, self.count, 10_000):
            due_ms = self.due_ms[low : low + 10_000]
            payloads = Blobs(np.full(len(due_ms), 8, np.uint32), due_ms.tobytes())
            await producer.send_batch(MessageBatch(payloads), Times(at_ms=due_ms))

    async def consume(self) -> None:
        async with self.broker.consumer("t", "s", permits=1_000) as inbox:
            async for batch in inbox.batches():
                self.delivered[batch.offsets] += 1
                self.delivered_ms[batch.offsets] = self.world.clock.now_ms()
                assert (self.due_ms[batch.offsets] == batch.due_ms).all()
                await inbox.ack(batch.offsets)

    def some(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        low = self.rng.randrange(self.count)
        return np.arange(low, min(low + self.step, self.count))

    async def cancel(self) -> None:
        outcomes = await self.broker.cancel(self.some(), topic="t")
        assert set(outcomes.statuses.tolist()) <= {AmendStatus.DONE, AmendStatus.DELIVERED}
        self.cancelled[outcomes.offsets[outcomes.done]] = True

    async def reschedule(self) -> None:
        delay_ms = self.rng.randrange(0, SPAN_MS)
        now_ms = self.world.clock.now_ms()
        outcomes = await self.broker.reschedule(
            self.some(), delay=timedelta(milliseconds=delay_ms), topic="t"
        )
        assert self.world.clock.now_ms() == now_ms
        moved = outcomes.offsets[outcomes.done]
        # The message may be delivered at its new time before the answer arrives.
        self.due_ms[moved] = now_ms + delay_ms

    async def run(self) -> None:
        await self.publish()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(self.consume)
            for turn in range(2 * SPAN_MS // 1000 + 2):
                async with trio.open_nursery() as changes:
                    changes.start_soon(self.cancel)
                    await self.reschedule()
                if turn % 20 == 19:
                    await self.world.checkpoint()
                await self.world.clock.advance(seconds=1)
            await self.world.clock.advance(ms=SPAN_MS)
            nursery.cancel_scope.cancel()

    def check(self) -> None:
        assert self.cancelled.any()
        assert not (self.delivered[self.cancelled]).any(), "cancelled and delivered"
        assert (self.delivered[~self.cancelled] == 1).all(), "lost, or delivered twice"
        kept = ~self.cancelled
        assert (self.delivered_ms[kept] >= self.due_ms[kept]).all(), "delivered before its time"


async def race(count: int) -> None:
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        running = Race(world, broker, count)
        await running.run()
        running.check()


async def test_no_message_is_lost_or_both_cancelled_and_delivered(
    mock_clock: MockClock,
) -> None:
    """B1: most of thirty thousand messages are cancelled or rescheduled before delivery."""
    await race(30_000)


@pytest.mark.long
async def test_no_message_of_a_million_is_lost_or_both_cancelled_and_delivered(
    mock_clock: MockClock,
) -> None:
    """B1: a million messages."""
    await race(1_000_000)
