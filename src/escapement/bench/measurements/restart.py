"""Restarts of a killed broker: the time to the first delivery, memory, and lost messages.

Many messages stay pending through all runs. In each run more messages are published, without a
consumer. When these are due, the broker is killed with SIGKILL and started again. The clock runs
from the start of the process until a consumer has the first of these overdue messages. The consumer
then takes the others and acknowledges them durably.

The broker may start without its delayed index, as on another machine. Then it must read messages
from the log.

An overdue message that does not arrive is lost. A message that arrives before its due time is
early. A message that arrives twice, or again in a later run, is a duplicate. At the end of each run
the broker reports its number of pending messages. If it is lower than the number published before
the first run, the missing ones are lost too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import trio

from escapement.bench.filling import fill, fill_pending
from escapement.bench.outcome import Figure, Outcome, Run
from escapement.bench.stage import Setting, Stage, now_ms, sleep_until, stage
from escapement.bench.take import take_all, take_batches
from escapement.bench.tally import Tally
from escapement.client.connect import connect
from escapement.errors import StorageError

# The default rest between publishing and the kill. An idle broker writes a checkpoint within this
# time.
SETTLE_MS: Final = 12_000
_TIMEOUT_S: Final = 120.0
# How long the consumer waits, after the last expected message, for any that must not arrive.
_LISTEN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Restart:
    """The overdue messages, the window of the pending ones, and the rest before the kill."""

    overdue: int  # the number of messages that are overdue after the restart, in each run
    window_ms: int  # pending messages are due at random times within this window
    settle_ms: int  # how long the broker rests before the kill
    without_index: bool = False  # whether the index is deleted before the broker starts again


async def measure(setting: Setting, restart: Restart) -> Outcome:
    """Fill the topic once, then kill and start the broker several times."""
    runs = []
    async with stage(setting) as on:
        topic, subscription = await on.new_subscription()
        filled = await fill_pending(on, topic, restart.window_ms)
        for number in range(setting.runs):
            runs.append(await _once(on, topic, subscription, restart, f"restart {number + 1}"))
    described = setting.described() | {
        "window-ms": restart.window_ms,
        "rest-ms": restart.settle_ms,
        "without-index": restart.without_index,
        "filled in s": round(filled, 1),
    }
    return Outcome("restart", on.engine, described, runs)


async def _once(on: Stage, topic: str, subscription: str, restart: Restart, what: str) -> Run:
    tally = Tally()
    overdue_ms = np.full(restart.overdue, now_ms() + restart.settle_ms, np.int64)
    tally.sent(
        await fill(on, topic, overdue_ms, f"{what}: publishing overdue messages"), overdue_ms
    )
    on.setting.progress(f"{what}: letting the broker rest", 0, 1)
    await sleep_until(int(overdue_ms[0]))
    on.setting.progress(f"{what}: waiting for the first delivery", 0, 1)
    on.host.kill()
    if restart.without_index:
        on.host.lose_index()
    began_s = trio.current_time()
    more: dict[str, Figure] = {"serving_after_s": round(await on.host.start(), 3)}
    async with connect(on.host.url) as broker:
        async with broker.consumer(topic, subscription) as inbox:
            await take_batches(inbox, tally, 1, _TIMEOUT_S)
            seconds = trio.current_time() - began_s
            if not tally.received_count:
                raise StorageError(f"the broker delivered nothing {seconds:.0f} s after its start")
            more["resident_bytes"], more["peak_resident_bytes"] = on.host.resident_bytes()
            await take_all(take_batches, inbox, tally, restart.overdue)
            await take_batches(inbox, tally, tally.received_count + 1, _LISTEN_S)
            await inbox.flush_acks()
        stats = await broker.admin("topics.stats", topic=topic)
        still: int = stats["subscriptions"][0]["unacknowledged"]
    run = Run.of(tally, seconds, more | {"still_pending": still}, is_rate=False)
    return replace(run, lost=tally.lost() + max(0, on.setting.pending - still))
