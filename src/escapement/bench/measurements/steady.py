"""Lateness of messages under a steady load.

A producer schedules messages at a fixed rate with random delays. A consumer of a shared
subscription takes and acknowledges them. The lateness of a message is the time by this machine's
clock at which the consumer had it, minus its due time.

The seconds of a run and its message rate cover the sending, until the last receipt. They leave out
the wait for the last messages to fall due. At first, fewer messages fall due than are sent. Once
the longest delay has passed since the first send, as many fall due as are sent. The delivery rate
is measured from then until the last send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from escapement.bench.filling import fill_beside
from escapement.bench.outcome import Figure, Outcome, Run
from escapement.bench.stage import Setting, Stage, now_ms, stage
from escapement.bench.take import TIMEOUT_S, Take, take_all, take_batches
from escapement.bench.tally import Tally
from escapement.client.connect import connect
from escapement.client.producing.producer import Producer
from escapement.message import Times

# The producer checks at least this often whether it is time to send the next batch.
_BEAT_S: Final = 0.01
# The shortest delay. A message that becomes durable only after its due time is always late.
_LEAST_DELAY_MS: Final = 200


@dataclass(frozen=True, slots=True)
class Steady:
    """A steady load, and the permits of its consumer."""

    messages: int
    rate: int  # messages per second
    window_ms: int  # delays are random, up to this; ``_LEAST_DELAY_MS`` is added to each
    permits: int  # the size of the consumer's delivery buffer, in messages

    def described(self) -> dict[str, int]:
        """Return the settings that the figures depend on, by option name."""
        return {"rate": self.rate, "window-ms": self.window_ms, "permits": self.permits}


class _Sending(NamedTuple):
    """When the producer began and ended sending, and how long it took."""

    began_ms: int
    last_sent_ms: int
    seconds: float  # from the beginning until the last receipt


async def measure(setting: Setting, steady: Steady) -> Outcome:
    """Measure several runs, each on a topic of its own."""
    runs = []
    async with stage(setting) as on:
        await fill_beside(on)
        for number in range(setting.runs):
            topic, subscription = await on.new_subscription()
            what = f"run {number + 1}"
            runs.append(await spell(on, steady, topic, subscription, take_batches, what))
            await on.admin("topics.delete", topic=topic)
    return Outcome("lateness", on.engine, setting.described() | steady.described(), runs)


async def spell(
    on: Stage, steady: Steady, topic: str, subscription: str, take: Take, what: str
) -> Run:
    """Measure one run on an existing topic and subscription.

    Args:
      take: the function that receives and acknowledges the messages.
      what: the text that the progress bar shows.
    """
    tally = Tally()
    bound = on.setting.in_flight
    # The longest time until the first message is due, or between the due times of two messages.
    quiet_ms = _LEAST_DELAY_MS + steady.window_ms + on.setting.batch_size * 1000 // steady.rate
    async with connect(on.host.url) as broker, connect(on.host.url) as other:
        async with broker.consumer(topic, subscription, permits=steady.permits) as inbox:
            async with (
                await other.producer(topic, max_in_flight_messages=bound) as producer,
                trio.open_nursery() as nursery,
            ):
                timeout_s = TIMEOUT_S + quiet_ms / 1000
                nursery.start_soon(take, inbox, tally, steady.messages, timeout_s)
                sending = await _send(on, producer, steady, tally, what)
            await take_all(take, inbox, tally, steady.messages, quiet_ms)
    return Run.of(tally, sending.seconds, _delivered(tally, steady, sending))


def _delivered(tally: Tally, steady: Steady, sending: _Sending) -> dict[str, Figure]:
    """Return the delivery rate of the span in which it is constant; {} if the run is too short."""
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
