"""A producer whose messages replace pending ones with the same key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import ClassVar, Final

import trio

import escapement
from escapement import Replace
from simulation.checks.replacing import DEBOUNCE, FIRST, LATEST, ReplaceCheck, Send
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.consuming import random_delay_ms
from simulation.features.feature import Feature, Topics
from simulation.world import World

_TOPIC: Final = "replaced"
_KEYS: Final = 3
_BATCH: Final = 3
_MEAN_S: Final = 10 * HOUR_S
_WAITS_MS: Final = (2 * 3_600_000, 30 * 3_600_000)


class Replacing(Feature):
    """Sends with replace keys of each mode, and often of the same key in one batch."""

    topics: ClassVar[Topics] = {_TOPIC: {"r": "shared"}}
    amended: ClassVar[Sequence[str]] = (_TOPIC,)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.check = ReplaceCheck(_TOPIC, 3 * MOST_SKEW_MS)

    async def run(self, end_ms: int) -> None:
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            await self._send_some(max(end_ms - self._history.now_ms(), 0))

    async def _send_some(self, left_ms: int) -> None:
        sends, delays_ms = [], []
        for _ in range(self._rng.randint(1, _BATCH)):
            delay_ms = random_delay_ms(self._rng, left_ms)
            sends.append(self._draw_one(delay_ms))
            delays_ms.append(delay_ms)
        self.check.called(sends)
        messages = [send.message for send in sends]
        replaces = [_replace(send) for send in sends]
        receipts = await self._send(messages, delays_ms, replace=replaces)
        for send, receipt in zip(sends, receipts, strict=True):
            self._note(send, receipt)

    def _draw_one(self, delay_ms: int) -> Send:
        now_ms = self._history.now_ms()
        mode = self._rng.choice([LATEST, LATEST, FIRST, DEBOUNCE])
        wait_ms = self._rng.randint(*_WAITS_MS) if mode == DEBOUNCE else None
        earliest_ms = now_ms - MOST_SKEW_MS + (0 if mode == DEBOUNCE else delay_ms)
        message = self._history.publish(_TOPIC, "", earliest_ms)
        return Send(message, f"r{self._rng.randrange(_KEYS)}", mode, now_ms, wait_ms)

    def _note(self, send: Send, receipt: escapement.Receipt) -> None:
        now_ms = self._history.now_ms()
        if receipt.duplicate:
            self.check.stored_before(send, now_ms)
            return
        replaced = -1 if receipt.replaced is None else receipt.replaced.offset
        kept = receipt.id.offset if receipt.kept and receipt.id else -1
        self.check.answered(send, now_ms, replaced, kept)
        self._history.counts["replaced"] += replaced >= 0
        self._history.counts["kept"] += kept >= 0


def _replace(send: Send) -> Replace:
    if send.wait_ms is not None:
        return Replace.debounce(send.key, max_wait=timedelta(milliseconds=send.wait_ms))
    return Replace.first(send.key) if send.mode == FIRST else Replace.latest(send.key)
