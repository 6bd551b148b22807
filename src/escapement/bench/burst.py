"""How fast what falls due together is delivered and acknowledged durably.

All messages are scheduled at random times within a window some seconds ahead, and one
consumer of a shared subscription waits for them. The clock runs from the moment the first
is due until the acknowledgement of the last is durable, so it cannot show less than the
window. Optionally the broker is stopped and started in between, so that everything comes
from its disk.
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

# Publishing must be over before the first message is due: so much time is allowed for it,
# and tried again with twice as much if it was not enough.
_PUBLISH_RATE: Final = 250_000
_LEAD_MS: Final = 3_000
_RESTART_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Burst:
    """How much, within how long, taken how."""

    messages: int
    window_ms: int
    permits: int
    one_by_one: bool  # `async for message in inbox` instead of `inbox.batches()`
    restart: bool  # stop and start the broker before the first is due
    failing_percent: int  # of these, the first attempt fails
    back_off_ms: int  # and they wait so long for the next
    dress: Dress = PLAIN  # keys come with an order: one message of each is out at a time


async def measure(setting: Setting, burst: Burst) -> Outcome:
    """Several bursts, each on a topic of its own."""
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
    """One burst; None if it was due before all was ready."""
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
                on.setting.progress(f"{what}: too late, again with more time", 0, 1)
                return None
            on.setting.progress(f"{what}: waiting for it", 0, 1)
            await sleep_until(first_ms - 100)
            cpu = CpuMeter(on.host)
            done_ms = await take_all(_take(burst), inbox, tally, burst.messages, burst.window_ms)
            more = cpu.read() | {"failed": tally.failed}
    await on.admin("topics.delete", topic=topic)
    return Run.of(tally, (done_ms - int(at_ms.min())) / 1000, more)


def _take(burst: Burst) -> Take:
    if burst.one_by_one:
        return take_one_by_one
    if burst.failing_percent:
        return take_batches_failing(burst.failing_percent, burst.back_off_ms)
    return take_batches
