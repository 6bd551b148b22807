"""How long a killed broker takes to deliver again, and what it weighs then.

So many messages are pending over thirty days, a few more are overdue and nobody takes
them. The broker is killed with SIGKILL and started again; the clock runs from the start of
the process until a consumer has the first of the overdue ones. The same pending messages
serve all runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import trio

from escapement.bench.outcome import Outcome, Run
from escapement.bench.publish import fill
from escapement.bench.stage import Setting, Stage, now_ms, stage
from escapement.client.broker import connect
from escapement.errors import InvalidRequest, StorageError

PENDING_WINDOW_MS: Final = 30 * 86_400_000
# Nothing of what is pending must fall due while this runs.
PENDING_FROM_MS: Final = 3_600_000
_OVERDUE: Final = 1_000
# A broker at rest writes a checkpoint in less; a busy one was killed before it.
_SETTLE_S: Final = 12.0
_FILL_STEP: Final = 500_000
_PATIENCE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Restart:
    """How many are pending, and whether the broker rests before it is killed."""

    pending: int
    settle: bool


async def measure(setting: Setting, restart: Restart) -> Outcome:
    """Fill once, then kill and start several times."""
    if setting.broker_url is not None:
        raise InvalidRequest("a restart needs a broker of its own: leave --broker out")
    async with stage(setting) as on:
        topic, subscription = await on.new_subscription()
        overdue_ms = np.full(_OVERDUE, now_ms(), np.int64)
        await fill(on, topic, overdue_ms, "filling")
        filled = await fill_pending(on, topic, restart.pending)
        if restart.settle:
            setting.progress("letting the broker rest", 0, 1)
            await trio.sleep(_SETTLE_S)
        runs = []
        for number in range(setting.runs):
            setting.progress("restarting", number, setting.runs)
            runs.append(await _restart_once(on, topic, subscription))
            if restart.settle:
                await trio.sleep(1)
    described = {
        "pending": restart.pending,
        "payload-bytes": str(setting.payload),
        "rested before": "yes" if restart.settle else "no",
        "filled in s": round(filled, 1),
    }
    return Outcome("restart", on.engine, described, runs)


async def fill_pending(on: Stage, topic: str, pending: int) -> float:
    """Schedule so many over thirty days; returns how many seconds that took."""
    began_s = trio.current_time()
    for done in range(0, pending, _FILL_STEP):
        count = min(_FILL_STEP, pending - done)
        at_ms = now_ms() + PENDING_FROM_MS + on.rng.integers(0, PENDING_WINDOW_MS, count)
        await fill(on, topic, at_ms, f"filling, {done:,} of {pending:,} done")
    return trio.current_time() - began_s


async def _restart_once(on: Stage, topic: str, subscription: str) -> Run:
    on.host.kill()
    began_s = trio.current_time()
    serving_s = await on.host.start()
    with trio.move_on_after(_PATIENCE_S):
        async with connect(on.host.url) as broker:
            async with broker.consumer(topic, subscription) as inbox:
                batch = await inbox.next_batch()
                seconds = trio.current_time() - began_s
                assert batch is not None
                assert int(batch.due_ms.max()) <= now_ms()
                resident, peak = on.host.resident_bytes()
                return Run(
                    None,
                    seconds,
                    more={
                        "serving_after_s": round(serving_s, 3),
                        "resident_bytes": resident,
                        "peak_resident_bytes": peak,
                    },
                )
    raise StorageError(f"nothing was delivered within {_PATIENCE_S:g} s of the start")
