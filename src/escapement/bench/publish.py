"""Publish throughput: how fast messages become durable.

The number of messages in flight, sent and without a receipt, is fixed. As many tasks run as
batches fit into it. Each task sends a batch, waits for its receipt, and sends the next. The batches
are made beforehand. The clock runs from the first send to the last receipt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import trio

from escapement.bench.filling import VARIETY, fill_beside
from escapement.bench.outcome import Outcome, Run
from escapement.bench.stage import CpuMeter, Setting, Stage, stage
from escapement.client.connect import connect
from escapement.client.producing.producer import Producer
from escapement.message import MessageBatch, Times


@dataclass(frozen=True, slots=True)
class Load:
    """The number of messages to publish, and the window of their delays."""

    messages: int
    window_ms: int  # delays are random, up to this; 0 for no delays


async def measure(setting: Setting, load: Load) -> Outcome:
    """Measure publish throughput on new topics."""
    runs = []
    async with stage(setting) as on:
        await fill_beside(on)
        for number in range(setting.runs):
            setting.progress("publishing", number, setting.runs)
            runs.append(await publish_once(on, on.new_topic(), load))
    described = setting.described() | {"window-ms": load.window_ms}
    return Outcome("publish", on.engine, described, runs)


async def publish_once(on: Stage, topic: str, load: Load) -> Run:
    """Publish the load to ``topic`` and measure it, after a warm-up of part of the load."""
    async with connect(on.host.url) as broker:
        most = on.setting.in_flight
        async with await broker.producer(topic, max_in_flight_messages=most) as producer:
            source = _Source(on, load)
            await _send_all(on, producer, source, replace(load, messages=min(load.messages, most)))
            cpu = CpuMeter(on.host)
            began_s = trio.current_time()
            sent = await _send_all(on, producer, source, load)
            return Run(sent, trio.current_time() - began_s, more=cpu.read())


class _Source:
    """Batches and delays that are made beforehand and sent in turn, repeatedly."""

    def __init__(self, on: Stage, load: Load) -> None:
        payload, rng = on.setting.payload, on.rng
        size = on.setting.batch_size
        self.batches = [payload.batch(rng, size) for _ in range(VARIETY)]
        self.payloads = [b for batch in self.batches for b in batch.payloads.to_list()]
        self._delays = [
            rng.integers(0, load.window_ms + 1, size, dtype=np.int64) for _ in range(VARIETY)
        ]
        self._timed = load.window_ms > 0
        self._turn = 0

    def next(self) -> tuple[MessageBatch, Times]:
        """Return the next batch, and the delays of its messages."""
        self._turn = (self._turn + 1) % VARIETY
        return self.batches[self._turn], self.times()

    def times(self) -> Times:
        """Return the delays of the batch that ``next`` returned last."""
        return Times(self._delays[self._turn]) if self._timed else Times()


async def _send_all(on: Stage, producer: Producer, source: _Source, load: Load) -> int:
    """Send the load and wait for all receipts. Return the number of messages sent.

    The last batch is a full one, so this number may exceed the load.
    """
    size, in_flight = on.setting.batch_size, on.setting.in_flight
    left = -(-load.messages // size)
    total = left * size

    async def send_batches() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await producer.send_batch(*source.next())

    async def send_singly(delay: tuple[int, str] | None) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await producer.send(source.payloads[left % VARIETY], delay=delay)

    async with trio.open_nursery() as nursery:
        for task in range(in_flight // size):
            if size > 1:
                nursery.start_soon(send_batches)
            else:
                delay = task * load.window_ms // in_flight
                nursery.start_soon(send_singly, (delay, "ms") if load.window_ms else None)
    return total
