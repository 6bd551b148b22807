"""Fan-out: one topic with many subscriptions, each of which delivers every message.

A producer sends single messages without a delay at a steady rate. Each subscription has one
consumer. The lateness of a delivery is the time at which the consumer had the message, minus the
time at which the producer sent it. The first bytes of a payload are the time of sending.

All consumers are tasks of the bench's own process. If the processor seconds of the client or of the
broker are about equal to the elapsed seconds, the rate is too high for it, and lateness grows with
the length of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import trio

from escapement.bench.filling import VARIETY, fill_beside
from escapement.bench.outcome import Figure, Outcome, Run
from escapement.bench.single.consumers import Crowd, consumers, finish
from escapement.bench.stage import CpuMeter, Setting, Stage, now_ms, stage
from escapement.bench.tally import Tally
from escapement.client.connect import connect
from escapement.client.consuming.inbox import Inbox
from escapement.client.producing.producer import Producer
from escapement.message import Int64s

# The size of the time of sending at the beginning of a payload.
TIME_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Fanout:
    """A steady load of single messages, and the consumers of the subscriptions."""

    messages: int
    rate: int  # messages per second
    crowd: Crowd  # one consumer for each subscription


async def measure(setting: Setting, load: Fanout) -> Outcome:
    """Measure several runs, each on a topic of its own."""
    runs = []
    async with stage(setting) as on:
        await fill_beside(on)
        for number in range(setting.runs):
            runs.append(await _once(on, load, f"run {number + 1}"))
    described = {
        "subscriptions": load.crowd.consumers,
        "rate": load.rate,
        "connections": load.crowd.connections,
        "permits": load.crowd.permits,
        "payload-bytes": str(setting.payload),
        "tick-ms": setting.tick_ms,
        "pending": setting.pending,
    }
    return Outcome("fanout", on.engine, described, runs)


async def _once(on: Stage, load: Fanout, what: str) -> Run:
    topic = on.new_topic()
    subscriptions = load.crowd.consumers
    tally = Tally()
    done = trio.Event()

    async def take(inbox: Inbox, number: int) -> None:
        async for message in inbox:
            async with message:
                payload = message.payload
                sent_ms = int.from_bytes(payload[:TIME_BYTES])
                tally.add_one(message.offset * subscriptions + number, sent_ms, payload)
            if tally.received_count >= load.messages * subscriptions and not tally.lost():
                done.set()

    url = on.host.url
    on.setting.progress(f"{what}: opening {subscriptions} subscriptions", 0, 1)
    async with (
        connect(url) as other,
        await other.producer(topic) as producer,
        consumers(url, topic, "bench-{}".format, load.crowd, take) as inboxes,
    ):
        cpu = CpuMeter(on.host)
        began_s = trio.current_time()
        offsets, sent_ms = await _send(on, producer, load, what)
        each = np.arange(subscriptions)
        tally.sent(
            (offsets[:, None] * subscriptions + each).ravel(), np.repeat(sent_ms, subscriptions)
        )
        await finish(done, lambda: tally.received_count)
        for inbox in inboxes:
            await inbox.flush_acks()
        seconds = trio.current_time() - began_s
        more: dict[str, Figure] = {"published": load.messages} | cpu.read()
    if "broker_cpu_seconds" in more:
        per_message_ms = 1000 * more["broker_cpu_seconds"] / load.messages
        more["broker_cpu_ms_per_message"] = round(per_message_ms, 3)
    await on.admin("topics.delete", topic=topic)
    return Run.of(tally, seconds, more)


async def _send(on: Stage, producer: Producer, load: Fanout, what: str) -> tuple[Int64s, Int64s]:
    """Send the messages at the rate. Return their offsets, and their times of sending."""
    payloads = on.setting.payload.batch(on.rng, VARIETY).payloads.to_list()
    offsets = np.zeros(load.messages, np.int64)
    sent_ms = np.zeros(load.messages, np.int64)

    async def send(number: int) -> None:
        at_ms = now_ms()
        rest = payloads[number % VARIETY][TIME_BYTES:]
        receipt = await producer.send(at_ms.to_bytes(TIME_BYTES) + rest)
        assert receipt.id is not None
        offsets[number], sent_ms[number] = receipt.id.offset, at_ms

    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(load.messages):
            await trio.sleep_until(began_s + number / load.rate)
            nursery.start_soon(send, number)
            on.setting.progress(what, number, load.messages)
    return offsets, sent_ms
