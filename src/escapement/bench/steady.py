"""How late messages are under a steady load, and that none is early.

A producer schedules so many messages a second with random delays, a consumer of a shared
subscription takes and acknowledges them. The clocks compared are this machine's: when the
consumer had the message, less when it was due.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import trio

from escapement.bench.outcome import Outcome, Run
from escapement.bench.stage import Setting, Stage, now_ms, stage
from escapement.bench.take import take_batches
from escapement.bench.tally import Tally
from escapement.client.broker import connect
from escapement.client.producer import Producer
from escapement.message import Times

# So often a batch is sent.
_BEAT_S: Final = 0.01
# The shortest delay: a message must be durable before it is due, or it is late by design.
_LEAST_DELAY_MS: Final = 200


@dataclass(frozen=True, slots=True)
class Steady:
    """How many a second, for how long, with delays of up to how much."""

    rate: int
    seconds: float
    window_ms: int
    permits: int


async def measure(setting: Setting, steady: Steady) -> Outcome:
    """Several spells, each on a topic of its own."""
    runs = []
    async with stage(setting) as on:
        for number in range(setting.runs):
            runs.append(await _once(on, steady, f"spell {number + 1}"))
    described = {
        "rate": steady.rate,
        "window-ms": steady.window_ms,
        "tick-ms": setting.tick_ms,
        "payload-bytes": str(setting.payload),
    }
    return Outcome("lateness", on.engine, described, runs)


async def _once(on: Stage, steady: Steady, what: str) -> Run:
    topic, subscription = await on.new_subscription()
    tally = Tally()
    messages = int(steady.rate * steady.seconds)
    began_s = trio.current_time()
    async with connect(on.host.url) as broker, connect(on.host.url) as other:
        async with broker.consumer(topic, subscription, permits=steady.permits) as inbox:
            async with await other.producer(topic) as producer, trio.open_nursery() as nursery:
                nursery.start_soon(take_batches, inbox, tally, messages)
                await _send(on, producer, steady, messages, tally, what)
            await inbox.flush_acks()
    seconds = trio.current_time() - began_s
    await on.admin("topics.delete", topic=topic)
    return Run.of(tally, seconds)


async def _send(
    on: Stage, producer: Producer, steady: Steady, messages: int, tally: Tally, what: str
) -> None:
    async def send(count: int) -> None:
        delays = on.rng.integers(0, steady.window_ms + 1, count, dtype=np.int64)
        at_ms = now_ms() + _LEAST_DELAY_MS + delays
        batch = on.setting.payload.batch(on.rng, count)
        receipts = await producer.send_batch(batch, Times(None, at_ms))
        tally.sent(receipts.offsets, at_ms)

    began_s = trio.current_time()
    sent = 0
    async with trio.open_nursery() as nursery:
        while sent < messages:
            await trio.sleep(_BEAT_S)
            wanted = int((trio.current_time() - began_s) * steady.rate)
            count = min(wanted, messages) - sent
            if count > 0:
                nursery.start_soon(send, count)
                sent += count
                on.setting.progress(what, sent, messages)
