"""How fast messages become durable: publishing with so many messages in flight.

Each of as many tasks as batches fit in flight sends a batch, waits for its receipt, sends
the next. The batches are made beforehand; the clock runs from the first send to the last
receipt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import trio

from escapement.bench.outcome import Outcome, Run
from escapement.bench.stage import CpuMeter, Setting, Stage, stage
from escapement.client.broker import connect
from escapement.client.producer import Producer
from escapement.message import Int64s, MessageBatch, Times

# Different batches that are sent in turns: enough that nothing is cached by its content.
_VARIETY: Final = 32


@dataclass(frozen=True, slots=True)
class Load:
    """What is published: how much, in which pieces, and due within how long."""

    messages: int
    batch_size: int
    in_flight: int
    window_ms: int  # due at random within it; 0 gives no times


async def measure(setting: Setting, load: Load) -> Outcome:
    """Publish to a fresh topic, several times over."""
    runs = []
    async with stage(setting) as on:
        for number in range(setting.runs):
            setting.progress("publishing", number, setting.runs)
            runs.append(await publish_once(on, on.new_topic(), load))
    return Outcome("publish", on.engine, describe(setting, load), runs)


def describe(setting: Setting, load: Load) -> dict[str, object]:
    """The load in words, for the heading."""
    return {
        "batch-size": load.batch_size,
        "in-flight": load.in_flight,
        "payload-bytes": str(setting.payload),
        "window-ms": load.window_ms,
    }


async def publish_once(on: Stage, topic: str, load: Load) -> Run:
    """One run on ``topic``."""
    async with connect(on.host.url) as broker:
        most = max(load.in_flight, load.batch_size)
        async with await broker.producer(topic, max_in_flight_messages=most) as producer:
            source = _Source(on, load)
            await _send_all(producer, source, replace(load, messages=min(load.messages, most)))
            cpu = CpuMeter(on.host)
            began_s = trio.current_time()
            sent = await _send_all(producer, source, load)
            return Run(sent, trio.current_time() - began_s, more=cpu.read())


class _Source:
    """Batches and times, in turns."""

    def __init__(self, on: Stage, load: Load) -> None:
        payload, rng = on.setting.payload, on.rng
        size = load.batch_size
        self.batches = [payload.batch(rng, size) for _ in range(_VARIETY)]
        self.payloads = [b for batch in self.batches for b in batch.payloads.to_list()]
        self._delays = [
            rng.integers(0, load.window_ms + 1, size, dtype=np.int64) for _ in range(_VARIETY)
        ]
        self._timed = load.window_ms > 0
        self._turn = 0

    def next(self) -> tuple[MessageBatch, Times]:
        """The next batch."""
        self._turn = (self._turn + 1) % _VARIETY
        return self.batches[self._turn], self.times()

    def times(self) -> Times:
        """Times of the batch whose turn it is."""
        return Times(self._delays[self._turn]) if self._timed else Times()


async def _send_all(producer: Producer, source: _Source, load: Load) -> int:
    """Send it all; returns how many messages that was."""
    left = -(-load.messages // load.batch_size)
    total = left * load.batch_size

    async def send_batches() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await producer.send_batch(*source.next())

    async def send_singly(delay: tuple[int, str] | None) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await producer.send(source.payloads[left % _VARIETY], delay=delay)

    async with trio.open_nursery() as nursery:
        for task in range(max(1, load.in_flight // load.batch_size)):
            if load.batch_size > 1:
                nursery.start_soon(send_batches)
            else:
                delay = task * load.window_ms // load.in_flight
                nursery.start_soon(send_singly, (delay, "ms") if load.window_ms else None)
    return total


async def fill(
    on: Stage, topic: str, at_ms: Int64s, what: str, batch_size: int = 1000
) -> list[Int64s]:
    """Schedule a message at each of these times; returns their offsets, batch by batch."""
    source = [on.setting.payload.batch(on.rng, batch_size) for _ in range(_VARIETY)]
    offsets: list[Int64s] = [np.zeros(0, np.int64)] * -(-len(at_ms) // batch_size)
    pieces = iter(range(len(offsets)))
    done = 0

    async def send(producer: Producer) -> None:
        nonlocal done
        for piece in pieces:
            times = at_ms[piece * batch_size : (piece + 1) * batch_size]
            batch = source[piece % _VARIETY]
            if len(times) < batch_size:
                batch = batch.take(np.arange(len(times)))
            receipts = await producer.send_batch(batch, Times(None, times))
            offsets[piece] = receipts.offsets
            done += len(times)
            on.setting.progress(what, done, len(at_ms))

    async with connect(on.host.url) as broker:
        async with await broker.producer(topic) as producer:
            async with trio.open_nursery() as nursery:
                for _ in range(64):
                    nursery.start_soon(send, producer)
    return offsets
