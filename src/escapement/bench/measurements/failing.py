"""Lateness of fresh messages on a topic where other messages keep failing.

This measures promise Q6 of docs/features.md: failing messages never slow down fresh ones. Many
messages of a subscription are delivered and negatively acknowledged repeatedly, each after its
back-off. Meanwhile fresh messages are sent to the same subscription at a steady rate. Runs
alternate between this topic and an empty one, so that other load on the machine affects both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import trio

from escapement.bench.filling import fill
from escapement.bench.measurements.steady import Steady, spell
from escapement.bench.outcome import Figure, Outcome, Run
from escapement.bench.stage import Setting, Stage, now_ms, stage
from escapement.bench.take import take_batches
from escapement.bench.tally import Tally
from escapement.client.connect import connect
from escapement.client.consuming.inbox import Inbox

# If none of the messages that are to fail arrives for this long, the measurement fails.
_TIMEOUT_S: Final = 30.0
# A delivered batch is nacked in this many parts, each with its own random delay.
_PORTIONS: Final = 16


@dataclass(frozen=True, slots=True)
class Failing:
    """The number of messages that keep failing, and their back-off."""

    messages: int
    back_off_ms: int


async def measure(setting: Setting, steady: Steady, failing: Failing) -> Outcome:
    """Measure pairs of runs: one beside the failing messages, and one on an empty topic."""
    runs = []
    async with stage(setting) as on:
        topic, subscription = await on.new_subscription()
        most_ms = failing.back_off_ms * 4 // 3  # leaves room for the back-off's jitter
        bounds = {"min_backoff_ms": failing.back_off_ms, "max_backoff_ms": most_ms}
        await on.admin(
            "subscriptions.update", topic=topic, subscription=subscription, policy=bounds
        )
        await fill(on, topic, np.full(failing.messages, now_ms()), "filling")
        await _fail_once(on, topic, subscription, failing)
        for number in range(setting.runs):
            taker = _Taker(failing.messages)
            what = f"pair {number + 1}"
            beside = await spell(on, steady, topic, subscription, taker.take, what)
            empty, its = await on.new_subscription()
            alone = await spell(on, steady, empty, its, take_batches, what)
            await on.admin("topics.delete", topic=empty)
            runs.append(_pair(beside, alone, taker.failed))
    described: dict[str, Any] = {
        "failing": failing.messages,
        "back-off-ms": failing.back_off_ms,
    }
    described |= setting.described() | steady.described()
    return Outcome("lateness", on.engine, described, runs)


async def _fail_once(on: Stage, topic: str, subscription: str, failing: Failing) -> None:
    """Nack each failing message once with a random delay, which spreads the retries evenly.

    The delays are between 0 and the back-off.
    """
    failed = 0
    async with connect(on.host.url) as broker:
        async with broker.consumer(topic, subscription, permits=100_000) as inbox:
            while failed < failing.messages:
                batch = await inbox.next_batch(_TIMEOUT_S)
                if batch is None:
                    raise TimeoutError(
                        f"only {failed} of the {failing.messages} failing messages were delivered"
                    )
                fresh = batch.attempts == 1
                failed += int(fresh.sum())
                # Shuffle the messages, as jitter does, so that neighbours do not return together.
                parts = np.array_split(on.rng.permutation(batch.offsets), _PORTIONS)
                for part in parts:
                    delay_ms = int(on.rng.integers(failing.back_off_ms))
                    await inbox.nack(part, (delay_ms, "ms"))
                on.setting.progress("failing", failed, failing.messages)


class _Taker:
    """A consumer that acknowledges fresh messages and nacks the failing ones."""

    def __init__(self, failing: int) -> None:
        self.failed = 0
        self._failing = failing  # messages with lower offsets than this fail

    async def take(self, inbox: Inbox, tally: Tally, messages: int, timeout_s: float) -> None:
        """Take until the tally has ``messages`` fresh ones, or none arrives for ``timeout_s``."""
        deadline = trio.current_time() + timeout_s
        while tally.received_count < messages and trio.current_time() < deadline:
            batch = await inbox.next_batch(deadline - trio.current_time())
            if batch is None:
                return
            fresh = batch.offsets >= self._failing
            if fresh.any():
                tally.add(batch.offsets[fresh], batch.due_ms[fresh])
                await inbox.ack(batch.offsets[fresh])
                deadline = trio.current_time() + timeout_s
            if not fresh.all():
                await inbox.nack(batch.offsets[~fresh])
                self.failed += int((~fresh).sum())


def _pair(beside: Run, alone: Run, failed: int) -> Run:
    assert alone.lateness_ms is not None
    more: dict[str, Figure] = dict(beside.more)
    for part, value in alone.lateness_ms._asdict().items():
        more[f"empty_late_{part}_ms"] = value
    more["failed_per_second"] = round(failed / beside.seconds)
    return Run(
        beside.messages,
        beside.seconds,
        lateness_ms=beside.lateness_ms,
        lost=beside.lost,
        early=beside.early,
        duplicates=beside.duplicates,
        more=more,
    )
