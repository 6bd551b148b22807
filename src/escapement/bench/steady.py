"""How late messages are under a steady load, and that none is early.

A producer schedules so many messages a second with random delays, a consumer of a shared
subscription takes and acknowledges them. The clocks compared are this machine's: when the
consumer had the message, less when it was due.

The seconds of a run are those of the sending, and so is its rate: the last messages are due
a delay later, and waiting for them is no part of the load. Deliveries are as many a second as
sends from the moment the longest delay is over until the sending ends; what arrives meanwhile
gives the rate of the deliveries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from escapement.bench.filling import fill_beside
from escapement.bench.outcome import Figure, Outcome, Run
from escapement.bench.stage import Setting, Stage, now_ms, stage
from escapement.bench.take import PATIENCE_S, Take, take_all, take_batches
from escapement.bench.tally import Tally
from escapement.client.connect import connect
from escapement.client.producer import Producer
from escapement.message import Times

# At the least so often it is looked whether a batch is to be sent.
_BEAT_S: Final = 0.01
# The shortest delay: a message must be durable before it is due, or it is late by design.
_LEAST_DELAY_MS: Final = 200


@dataclass(frozen=True, slots=True)
class Steady:
    """How many, how many a second, with delays of up to how much."""

    messages: int
    rate: int
    window_ms: int
    permits: int

    def described(self) -> dict[str, int]:
        """What says how it was measured, by the names of the options."""
        return {"rate": self.rate, "window-ms": self.window_ms, "permits": self.permits}


class _Sending(NamedTuple):
    """When it was."""

    began_ms: int
    last_sent_ms: int
    seconds: float  # until the last receipt


async def measure(setting: Setting, steady: Steady) -> Outcome:
    """Several spells, each on a topic of its own."""
    runs = []
    async with stage(setting) as on:
        await fill_beside(on)
        for number in range(setting.runs):
            topic, subscription = await on.new_subscription()
            what = f"spell {number + 1}"
            runs.append(await spell(on, steady, topic, subscription, take_batches, what))
            await on.admin("topics.delete", topic=topic)
    return Outcome("lateness", on.engine, setting.described() | steady.described(), runs)


async def spell(
    on: Stage, steady: Steady, topic: str, subscription: str, take: Take, what: str
) -> Run:
    """One run, on a topic and a subscription that are there."""
    tally = Tally()
    bound = on.setting.in_flight
    # Until the first can be there, and between two of them.
    quiet_ms = _LEAST_DELAY_MS + steady.window_ms + on.setting.batch_size * 1000 // steady.rate
    async with connect(on.host.url) as broker, connect(on.host.url) as other:
        async with broker.consumer(topic, subscription, permits=steady.permits) as inbox:
            async with (
                await other.producer(topic, max_in_flight_messages=bound) as producer,
                trio.open_nursery() as nursery,
            ):
                patience_s = PATIENCE_S + quiet_ms / 1000
                nursery.start_soon(take, inbox, tally, steady.messages, patience_s)
                sending = await _send(on, producer, steady, tally, what)
            await take_all(take, inbox, tally, steady.messages, quiet_ms)
    return Run.of(tally, sending.seconds, _delivered(tally, steady, sending))


def _delivered(tally: Tally, steady: Steady, sending: _Sending) -> dict[str, Figure]:
    """The rate of the deliveries while they are steady, if they ever are."""
    since_ms = sending.began_ms + _LEAST_DELAY_MS + steady.window_ms
    if steady.messages * 1000 // steady.rate <= _LEAST_DELAY_MS + steady.window_ms:
        return {}
    span_ms = max(1, sending.last_sent_ms - since_ms)
    count = tally.arrived(since_ms, since_ms + span_ms)
    return {"delivered_per_second": round(count * 1000 / span_ms)}


async def _send(on: Stage, producer: Producer, steady: Steady, tally: Tally, what: str) -> _Sending:
    async def send(count: int) -> None:
        at_ms = now_ms() + _LEAST_DELAY_MS + on.rng.integers(0, steady.window_ms + 1, count)
        batch = on.setting.payload.batch(on.rng, count)
        receipts = await producer.send_batch(batch, Times(None, at_ms))
        tally.sent(receipts.offsets, at_ms)

    messages, size = steady.messages, on.setting.batch_size
    beat_s = min(_BEAT_S, size / steady.rate)
    began_ms, began_s = now_ms(), trio.current_time()
    sent = 0
    async with trio.open_nursery() as nursery:
        while sent < messages:
            await trio.sleep(beat_s)
            wanted = min(int((trio.current_time() - began_s) * steady.rate), messages)
            while wanted - sent >= size or sent < wanted == messages:
                count = min(size, messages - sent)
                nursery.start_soon(send, count)
                sent += count
            on.setting.progress(what, sent, messages)
        last_sent_ms = now_ms()
    return _Sending(began_ms, last_sent_ms, trio.current_time() - began_s)
