"""Workers: consumers of one subscription that take a message, acknowledge it, and take the next.

The subscription is paused while messages are published to it and the consumers connect. So all
messages are ready when the clock starts. It runs from the request to resume the subscription until
all acknowledgements are durable.

All workers are tasks or threads of the bench's own process. Compare the processor seconds of the
client with the elapsed seconds: if they are about equal, the client limits the rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import trio

from escapement.bench.filling import fill, fill_beside
from escapement.bench.outcome import Outcome, Run
from escapement.bench.single import blocking
from escapement.bench.single.consumers import Crowd, consumers, finish
from escapement.bench.stage import CpuMeter, Setting, Stage, now_ms, stage
from escapement.bench.tally import Tally
from escapement.client.connect import connect
from escapement.client.consuming.inbox import Inbox


@dataclass(frozen=True, slots=True)
class Workers:
    """The load of the workers, and how they consume it."""

    messages: int
    crowd: Crowd
    durable: bool  # a worker waits until its acknowledgement is durable
    blocking: bool  # workers are threads with the blocking client


async def measure(setting: Setting, load: Workers) -> Outcome:
    """Measure several runs, each on a topic of its own."""
    runs = []
    async with stage(setting) as on:
        await fill_beside(on)
        for number in range(setting.runs):
            runs.append(await _once(on, load, f"run {number + 1}"))
    described = setting.described() | {
        "workers": load.crowd.consumers,
        "connections": load.crowd.connections,
        "permits": load.crowd.permits,
        "acknowledgements": "durable" if load.durable else "sent",
        "client": "blocking" if load.blocking else "async",
    }
    return Outcome("workers", on.engine, described, runs)


async def _once(on: Stage, load: Workers, what: str) -> Run:
    topic, subscription = await on.new_subscription()
    async with connect(on.host.url) as broker:
        await broker.pause(topic, subscription)
    at_ms = np.full(load.messages, now_ms())
    tally = Tally()
    tally.sent(await fill(on, topic, at_ms, f"{what}: publishing"), at_ms)
    on.setting.progress(f"{what}: {load.crowd.consumers} workers", 0, 1)
    if load.blocking:
        task = blocking.Work(
            on.host, topic, subscription, load.messages, load.crowd, load.durable, tally
        )
        run = await trio.to_thread.run_sync(task.run)
    else:
        run = await _work(on, load, topic, subscription, tally)
    await on.admin("topics.delete", topic=topic)
    return run


async def _work(on: Stage, load: Workers, topic: str, subscription: str, tally: Tally) -> Run:
    done = trio.Event()
    acked = 0

    async def work(inbox: Inbox, number: int) -> None:
        nonlocal acked
        async for message in inbox:
            tally.add_one(message.offset, message.due_ms, message.payload)
            await message.ack(durable=load.durable)
            acked += 1
            if acked >= load.messages and not tally.lost():
                done.set()

    url = on.host.url
    async with (
        connect(url) as other,
        consumers(url, topic, lambda number: subscription, load.crowd, work) as inboxes,
    ):
        cpu = CpuMeter(on.host)
        began_s = trio.current_time()
        await other.resume(topic, subscription)
        await finish(done, lambda: acked)
        for inbox in inboxes:
            await inbox.flush_acks()
        return Run.counted(tally, trio.current_time() - began_s, cpu.read())
