"""Preparations before the clock starts: topics, messages at given times, and pending messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import trio

from escapement.bench.stage import Stage, now_ms
from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.client.producing.producer import Producer
from escapement.message import Blobs, Int64s, MessageBatch, Times

# The number of different batches, sent in turn: enough that no cache profits from equal content.
VARIETY: Final = 32
# Pending messages are due in an hour or later, so that none falls due during a measurement.
_PENDING_FROM_MS: Final = 3_600_000
_PENDING_WINDOW_MS: Final = 30 * 86_400_000
# Pending messages are scheduled in steps of this number, to bound the memory for due times.
_STEP: Final = 500_000
# The number of topics that one request creates.
_CREATED_AT_ONCE: Final = 5_000


@dataclass(frozen=True, slots=True)
class Dress:
    """How many different keys messages have, and whether they have priorities."""

    keys: int = 0  # the number of different keys; 0 for messages without keys
    priorities: bool = False  # whether each message gets a random priority, 0 to 255

    def all_keys(self) -> Blobs | None:
        """Return the different keys, or None if messages have no keys."""
        return Blobs.of([b"key-%d" % n for n in range(self.keys)]) if self.keys else None

    def put_on(
        self, batch: MessageBatch, all_keys: Blobs | None, rng: np.random.Generator
    ) -> MessageBatch:
        """Return the batch with random keys, out of ``all_keys``, and random priorities."""
        count = len(batch)
        keys = priorities = None
        if all_keys is not None:
            keys = all_keys.take(rng.integers(0, len(all_keys), count))
        if self.priorities:
            priorities = rng.integers(0, 256, count, dtype=np.uint8)
        return MessageBatch(batch.payloads, keys, None, priorities)


PLAIN: Final = Dress()


async def fill(on: Stage, topic: str, at_ms: Int64s, what: str, dress: Dress = PLAIN) -> Int64s:
    """Schedule one message for each time in ``at_ms``. Return the offsets in the same order.

    Args:
      what: the text that the progress bar shows.
    """
    setting = on.setting
    size = setting.batch_size
    source = [setting.payload.batch(on.rng, size) for _ in range(VARIETY)]
    all_keys = dress.all_keys()
    offsets = np.zeros(len(at_ms), np.int64)
    firsts = iter(range(0, len(at_ms), size))
    done = 0

    async def send(producer: Producer) -> None:
        nonlocal done
        for first in firsts:
            times = at_ms[first : first + size]
            batch = source[first // size % VARIETY]
            if len(times) < size:
                batch = batch.take(np.arange(len(times)))
            dressed = dress.put_on(batch, all_keys, on.rng)
            receipts = await producer.send_batch(dressed, Times(None, times))
            offsets[first : first + size] = receipts.offsets
            done += len(times)
            setting.progress(what, done, len(at_ms))

    async with connect(on.host.url) as broker:
        async with await broker.producer(
            topic, max_in_flight_messages=setting.in_flight
        ) as producer:
            async with trio.open_nursery() as nursery:
                for _ in range(setting.in_flight // size):
                    nursery.start_soon(send, producer)
    return offsets


async def fill_pending(on: Stage, topic: str, window_ms: int = _PENDING_WINDOW_MS) -> float:
    """Schedule ``setting.pending`` messages, due in an hour or later. Return the seconds taken."""
    pending = on.setting.pending
    began_s = trio.current_time()
    for done in range(0, pending, _STEP):
        count = min(_STEP, pending - done)
        at_ms = now_ms() + _PENDING_FROM_MS + on.rng.integers(0, window_ms + 1, count)
        await fill(on, topic, at_ms, f"filling, {done:,} of {pending:,} done")
    return trio.current_time() - began_s


async def fill_beside(on: Stage) -> None:
    """Schedule ``setting.pending`` messages on a topic that the measurement does not use."""
    if on.setting.pending:
        topic, _ = await on.new_subscription()
        await fill_pending(on, topic)


async def create_topics(on: Stage, broker: Broker, topics: list[str], **options: Any) -> None:
    """Create topics, many in each request, with the ``options`` of `topics.create_many`."""
    for low in range(0, len(topics), _CREATED_AT_ONCE):
        on.setting.progress("creating topics", low, len(topics))
        some = topics[low : low + _CREATED_AT_ONCE]
        await broker.admin("topics.create_many", topics=some, **options)
