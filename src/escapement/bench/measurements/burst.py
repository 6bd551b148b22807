"""Bursts: how fast messages that are due together are delivered and durably acknowledged.

The messages of a burst are scheduled at random times within a window some seconds ahead. One
consumer of a shared subscription waits for them. The clock runs from the first due time until the
last acknowledgement is durable, so a burst cannot take less time than its window. Optionally the
broker is restarted before the messages are due, so that it reads them all from its disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from escapement.bench.filling import PLAIN, Dress, fill, fill_beside
from escapement.bench.outcome import Outcome, Run
from escapement.bench.stage import CpuMeter, Setting, Stage, now_ms, sleep_until, stage
from escapement.bench.take import (
    Take,
    take_all,
    take_batches,
    take_batches_failing,
    take_one_by_one,
)
from escapement.bench.tally import Tally
from escapement.client.connect import connect

# The lead is the time from the start of publishing until the first message is due. It allows for
# publishing at this rate, in messages per second, plus a constant. If the messages are due before
# the consumer is connected, the burst is repeated with twice the lead.
_PUBLISH_RATE: Final = 250_000
_LEAD_MS: Final = 3_000
# Added to the lead if the broker is restarted.
_RESTART_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Burst:
    """The load of a burst, and how it is consumed."""

    messages: int
    window_ms: int  # messages are due at random times within this window
    permits: int  # the size of the consumer's delivery buffer, in messages
    one_by_one: bool  # consume with `async for message in inbox`, not with `inbox.next_batch()`
    restart: bool  # restart the broker before the first message is due
    failing_percent: int  # the percentage of messages whose first attempt fails
    back_off_ms: int  # how long failed messages wait for their next attempt
    dress: Dress = PLAIN  # with keys, one message of each key is in flight at a time


async def measure(setting: Setting, burst: Burst) -> Outcome:
    """Measure several bursts, each on a topic of its own."""
    runs: list[Run] = []
    lead_ms = _LEAD_MS + burst.messages * 1000 // _PUBLISH_RATE
    async with stage(setting) as on:
        await fill_beside(on)
        while len(runs) < setting.runs:
            run = await _burst_once(on, burst, lead_ms, f"burst {len(runs) + 1}")
            if run is None:
                lead_ms *= 2
            else:
                runs.append(run)
    described = setting.described() | {
        "window-ms": burst.window_ms,
        "permits": burst.permits,
        "taken": "one by one" if burst.one_by_one else "in batches",
        "after a restart": "yes" if burst.restart else "no",
        "keys, in order": burst.dress.keys,
        "failing once": f"{burst.failing_percent} %",
        "back-off-ms": burst.back_off_ms,
        "priorities": "random" if burst.dress.priorities else "none",
    }
    return Outcome("burst", on.engine, described, runs)


async def _burst_once(on: Stage, burst: Burst, lead_ms: int, what: str) -> Run | None:
    """Run one burst. Return None if it was due before the consumer was connected."""
    policy = {"order": "key"} if burst.dress.keys else {}
    topic, subscription = await on.new_subscription(policy)
    tally = Tally()
    first_ms = now_ms() + lead_ms + (_RESTART_MS if burst.restart else 0)
    at_ms = first_ms + on.rng.integers(0, max(1, burst.window_ms), burst.messages)
    tally.sent(await fill(on, topic, at_ms, f"{what}: scheduling", burst.dress), at_ms)
    if burst.restart:
        await on.host.stop()
        await on.host.start()
    async with connect(on.host.url) as broker:
        async with broker.consumer(topic, subscription, permits=burst.permits) as inbox:
            if now_ms() >= first_ms:
                on.setting.progress(f"{what}: due too early, repeating with more time", 0, 1)
                return None
            on.setting.progress(f"{what}: waiting until it is due", 0, 1)
            await sleep_until(first_ms - 100)
            cpu = CpuMeter(on.host)
            done_ms = await take_all(_take(burst), inbox, tally, burst.messages, burst.window_ms)
            more = cpu.read() | {"failed": tally.failed_count}
    await on.admin("topics.delete", topic=topic)
    return Run.of(tally, (done_ms - int(at_ms.min())) / 1000, more)


def _take(burst: Burst) -> Take:
    if burst.one_by_one:
        return take_one_by_one
    if burst.failing_percent:
        return take_batches_failing(burst.failing_percent, burst.back_off_ms)
    return take_batches
