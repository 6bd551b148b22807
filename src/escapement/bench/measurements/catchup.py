"""Catching up: how fast a new subscription from ``earliest`` consumes a log with many messages.

The messages are published once, without delays and before any subscription exists. In each run a
consumer opens a new shared subscription from ``earliest``. The clock runs from this request until
all acknowledgements are durable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import trio

from escapement.bench.filling import fill, fill_beside
from escapement.bench.outcome import Outcome, Run
from escapement.bench.stage import CpuMeter, Setting, Stage, now_ms, stage
from escapement.bench.take import take_all, take_batches
from escapement.bench.tally import Tally
from escapement.client.connect import connect
from escapement.message import Int64s


@dataclass(frozen=True, slots=True)
class Catchup:
    """The number of messages in the log, and the permits of the consumer."""

    messages: int
    permits: int  # the size of the consumer's delivery buffer, in messages


async def measure(setting: Setting, load: Catchup) -> Outcome:
    """Publish all messages. Then catch up with a new subscription in each run."""
    runs = []
    async with stage(setting) as on:
        await fill_beside(on)
        topic = on.new_topic()
        at_ms = np.full(load.messages, now_ms())
        offsets = await fill(on, topic, at_ms, "publishing")
        for number in range(setting.runs):
            setting.progress("catching up", number, setting.runs)
            runs.append(await _once(on, load, topic, f"run-{number + 1}", offsets, at_ms))
    described = setting.described() | {"permits": load.permits}
    return Outcome("catchup", on.engine, described, runs)


async def _once(
    on: Stage, load: Catchup, topic: str, subscription: str, offsets: Int64s, at_ms: Int64s
) -> Run:
    tally = Tally()
    tally.sent(offsets, at_ms)
    async with connect(on.host.url) as broker:
        cpu = CpuMeter(on.host)
        began_s = trio.current_time()
        async with broker.consumer(
            topic, subscription, position="earliest", permits=load.permits
        ) as inbox:
            await take_all(take_batches, inbox, tally, load.messages)
            run = Run.counted(tally, trio.current_time() - began_s, cpu.read())
        await broker.admin("subscriptions.delete", topic=topic, subscription=subscription)
    return run
