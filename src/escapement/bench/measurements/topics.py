"""The cost of many topics: creation rate, memory, and restart time.

Each topic has a shared subscription and one message that is due in some hours. In each run one
topic gets another message, which falls due without a consumer. Then the broker is killed with
SIGKILL and started again. The clock runs from the start of the process until a consumer has the
overdue message. The memory of the broker process is measured before the first kill and after each
start.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import trio

from escapement.bench.filling import create_topics
from escapement.bench.measurements.restart import SETTLE_MS
from escapement.bench.outcome import Figure, Outcome, Run
from escapement.bench.stage import Setting, Stage, now_ms, sleep_until, stage
from escapement.bench.take import take_batches
from escapement.bench.tally import Tally
from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.errors import StorageError

SUBSCRIPTION: Final = "bench"
# The number of producers that fill topics at the same time, over one connection.
_PUBLISHERS: Final = 64
# The delay of the pending message of each topic.
_PENDING: Final = timedelta(hours=6)
_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Topics:
    """The number of topics, and how long the broker rests before it is killed."""

    count: int
    rest_ms: int = SETTLE_MS


async def measure(setting: Setting, load: Topics) -> Outcome:
    """Create and fill the topics once. Then kill and start the broker in each run."""
    async with stage(setting) as on:
        names = [on.new_topic() for _ in range(load.count)]
        async with connect(on.host.url) as broker:
            created = await _create(on, broker, names)
            filled = await _fill(on, broker, names)
        runs = [await _once(on, names[number], load) for number in range(setting.runs)]
    about = {
        "topics": load.count,
        "payload-bytes": str(setting.payload),
        "tick-ms": setting.tick_ms,
    }
    described = about | created | filled
    return Outcome("topics", on.engine, described, runs)


async def _create(on: Stage, broker: Broker, names: list[str]) -> dict[str, Figure]:
    began_s = trio.current_time()
    await create_topics(on, broker, names, subscription=SUBSCRIPTION)
    seconds = trio.current_time() - began_s
    return {"created a second": round(len(names) / seconds)}


async def _fill(on: Stage, broker: Broker, names: list[str]) -> dict[str, Figure]:
    """Publish one message to each topic."""
    began_s = trio.current_time()
    left = iter(names)
    done = 0

    async def publish() -> None:
        nonlocal done
        for name in left:
            async with await broker.producer(name) as producer:
                await producer.send(on.rng.bytes(on.setting.payload.most_bytes), delay=_PENDING)
            done += 1
            on.setting.progress("a message for each topic", done, len(names))

    async with trio.open_nursery() as nursery:
        for _ in range(_PUBLISHERS):
            nursery.start_soon(publish)
    resident, peak = on.host.resident_bytes()
    return {
        "filled in s": round(trio.current_time() - began_s, 1),
        "filled, resident MiB": resident >> 20,
        "filled, peak MiB": peak >> 20,
    }


async def _once(on: Stage, topic: str, load: Topics) -> Run:
    due_ms = now_ms() + load.rest_ms
    async with connect(on.host.url) as broker, await broker.producer(topic) as producer:
        await producer.send(b"overdue", delay=timedelta(milliseconds=load.rest_ms))
    on.setting.progress("letting the broker rest", 0, 1)
    await sleep_until(due_ms + 100)
    on.setting.progress("waiting for the overdue message", 0, 1)
    on.host.kill()
    began_s = trio.current_time()
    more: dict[str, Figure] = {"serving_after_s": round(await on.host.start(), 3)}
    tally = Tally()
    async with connect(on.host.url) as broker:
        async with broker.consumer(topic, SUBSCRIPTION) as inbox:
            await take_batches(inbox, tally, 1, _TIMEOUT_S)
            seconds = trio.current_time() - began_s
            if not tally.received_count:
                raise StorageError(f"the broker delivered nothing {seconds:.0f} s after its start")
            await inbox.flush_acks()
        more["resident_bytes"], more["peak_resident_bytes"] = on.host.resident_bytes()
        more["active_topics"] = (await broker.admin("broker.stats"))["active_topics"]
    return Run(tally.received_count, seconds, is_rate=False, more=more)
