"""Publish throughput: how fast messages become durable.

The number of messages in flight, sent and without a receipt, is fixed. As many tasks run as
batches fit into it. Each task sends a batch, waits for its receipt, and sends the next, to the
topics in turn. The batches are made beforehand. The clock runs from the first send to the last
receipt.

With the blocking client a single thread submits all messages (see ``single.blocking``).
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import numpy as np
import trio

from escapement.bench.filling import VARIETY, create_topics, fill_beside
from escapement.bench.outcome import Figure, Outcome, Run
from escapement.bench.single.blocking import Submitting
from escapement.bench.stage import CpuMeter, Setting, Stage, stage
from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.client.producing.producer import Producer
from escapement.message import MessageBatch, Times


@dataclass(frozen=True, slots=True)
class Load:
    """The messages to publish, and how they are sent."""

    messages: int
    window_ms: int  # delays are random, up to this; 0 for no delays
    topics: int = 1
    per_producer: int = 0  # sends until a producer is closed; 0 keeps one open for each topic
    rest_ms: int = 0  # how long a task rests between two sends
    blocking: bool = False  # one thread submits single messages with the blocking client


async def measure(setting: Setting, load: Load) -> Outcome:
    """Measure publish throughput on new topics."""
    runs = []
    async with stage(setting) as on:
        await fill_beside(on)
        for number in range(setting.runs):
            setting.progress("publishing", number, setting.runs)
            topics = [on.new_topic() for _ in range(load.topics)]
            runs.append(await publish_once(on, topics, load))
    described = setting.described() | {
        "window-ms": load.window_ms,
        "topics": load.topics,
        "per-producer": load.per_producer or "all",
        "rest-ms": load.rest_ms,
        "client": "blocking" if load.blocking else "async",
    }
    return Outcome("publish", on.engine, described, runs)


async def publish_once(on: Stage, topics: list[str], load: Load) -> Run:
    """Publish the load to ``topics`` and measure it, after a warm-up of part of the load.

    There is no warm-up if the load opens a new producer for each few sends.
    """
    source = _Source(on, load)
    in_flight = on.setting.in_flight
    if load.blocking:
        submitting = Submitting(
            on.host, topics, source.payloads, load.messages, in_flight, load.window_ms
        )
        return await trio.to_thread.run_sync(submitting.run)
    async with connect(on.host.url) as broker, AsyncExitStack() as stack:
        producers = []
        if len(topics) > 1:
            await create_topics(on, broker, topics)
        if not load.per_producer:
            for topic in topics:
                producer = await broker.producer(topic, max_in_flight_messages=in_flight)
                producers.append(await stack.enter_async_context(producer))
            warm_up = _Sending(on, broker, topics, producers, source, load)
            await warm_up.send(min(load.messages, in_flight))
        sending = _Sending(on, broker, topics, producers, source, load)
        cpu = CpuMeter(on.host)
        began_s = trio.current_time()
        sent = await sending.send(load.messages)
        seconds = trio.current_time() - began_s
        return Run(sent, seconds, more=sending.figures(seconds) | cpu.read())


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


# Sends a batch or a single message with the given producer, and waits for the receipt.
_Send = Callable[[Producer], Awaitable[object]]


class _Sending:
    """The tasks that send a load, and how long each send took until its receipt."""

    def __init__(
        self,
        on: Stage,
        broker: Broker,
        topics: list[str],
        producers: list[Producer],
        source: _Source,
        load: Load,
    ) -> None:
        self._took_s = array("d")
        self._on = on
        self._broker = broker
        self._topics = topics
        self._producers = producers  # one for each topic, unless each few sends open a new one
        self._source = source
        self._load = load
        self._left = 0  # sends that no task has begun

    async def send(self, messages: int) -> int:
        """Send this many messages and wait for all receipts. Return the number of messages sent.

        The last batch is a full one, so this number may exceed ``messages``.
        """
        size, in_flight = self._on.setting.batch_size, self._on.setting.in_flight
        self._left = total = -(-messages // size)
        act = self._with_new_producers if self._load.per_producer else self._with_open_producers
        async with trio.open_nursery() as nursery:
            for task in range(in_flight // size):
                nursery.start_soon(act, self._sender(task))
        return total * size

    def figures(self, seconds: float) -> dict[str, Figure]:
        """Return the median and the 99th percentile of the sends, and the rate of producers."""
        p50, p99 = (1000 * np.percentile(np.array(self._took_s), [50, 99])).tolist()
        found: dict[str, Figure] = {"send_p50_ms": round(p50, 3), "send_p99_ms": round(p99, 3)}
        if self._load.per_producer:
            rate = len(self._took_s) / self._load.per_producer / seconds
            found["producers_per_second"] = round(rate)
        return found

    def _sender(self, task: int) -> _Send:
        source, load, setting = self._source, self._load, self._on.setting
        if setting.batch_size > 1:
            return lambda producer: producer.send_batch(*source.next())
        delay_ms = task * load.window_ms // setting.in_flight
        delay = (delay_ms, "ms") if load.window_ms else None
        return lambda producer: producer.send(source.payloads[self._left % VARIETY], delay=delay)

    async def _with_open_producers(self, send: _Send) -> None:
        while self._left > 0:
            self._left -= 1
            await self._timed(send, self._producers[self._left % len(self._producers)])

    async def _with_new_producers(self, send: _Send) -> None:
        """Send ``per_producer`` times with a new producer of each topic, topic after topic."""
        while self._left > 0:
            count = min(self._load.per_producer, self._left)
            self._left -= count
            topic = self._topics[self._left // self._load.per_producer % len(self._topics)]
            async with await self._broker.producer(topic) as producer:
                for _ in range(count):
                    await self._timed(send, producer)

    async def _timed(self, send: _Send, producer: Producer) -> None:
        began_s = trio.current_time()
        await send(producer)
        self._took_s.append(trio.current_time() - began_s)
        if self._load.rest_ms:
            await trio.sleep(self._load.rest_ms / 1000)
