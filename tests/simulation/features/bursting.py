"""Bursts of requests for several bundles, whose groups are written in shared transactions."""

from __future__ import annotations

from typing import ClassVar, Final

import trio

from escapement.errors import EscapementError
from histories.history import Message
from histories.recording import send
from simulation.calls import SLOW_SHARE
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.consuming import random_delay_ms
from simulation.features.feature import Feature, Topics

# Their names belong to different bundles: to both of two, and to three of more.
_TOPICS: Final = ("burst-a", "burst-b", "burst-c")
_MEAN_S: Final = 10 * HOUR_S
_LONGEST_DELAY_MS: Final = 10 * 3_600_000
# Within this time, clients are usually connected.
_CONNECTED_S: Final = 60.0
# How often a process halts in a burst, how long, and the longest time between two halts.
_HALTS: Final = 10
_HALT_S: Final = 0.05
_MOST_BETWEEN_S: Final = 0.1


class Bursting(Feature):
    """Sends a message to each topic at the same time, while all processes halt now and then.

    A process that halts gets no processor time, as on a busy machine. Once it goes on, it handles
    all requests at once that have arrived meanwhile: first the messages, later their
    acknowledgements. Its database calls take time.
    """

    topics: ClassVar[Topics] = {topic: {f"{topic}-s": "shared"} for topic in _TOPICS}

    async def run(self, end_ms: int) -> None:
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            left_ms = max(end_ms - self._history.now_ms(), 0)
            await self._burst(random_delay_ms(self._rng, min(left_ms, _LONGEST_DELAY_MS)))

    async def _burst(self, delay_ms: int) -> None:
        begin = trio.Event()
        earliest_ms = self._history.now_ms() + delay_ms - MOST_SKEW_MS
        async with trio.open_nursery() as sending:
            for topic in _TOPICS:
                message = self._history.publish(topic, "", earliest_ms)
                sending.start_soon(self._send_at, begin, message, delay_ms)
            await trio.sleep(_CONNECTED_S)
            begin.set()
            await self._halt()

    async def _send_at(self, begin: trio.Event, message: Message, delay_ms: int) -> None:
        """Send a message when the burst begins, and again while its fate is unknown."""
        try:
            async with self._world.connect() as client:
                producer = await client.producer(message.topic)
                await begin.wait()
                batch, dedup = [(message, delay_ms)], [f"d{message.number}"]
                (receipt,) = await send(self._history, producer, batch, dedup=dedup)
            if receipt.id is not None:
                return
        except EscapementError as error:
            if not error.retryable:
                raise
        await self._send([message], [delay_ms])

    async def _halt(self) -> None:
        """Let all processes halt a few times, and let their calls take time."""
        for _ in range(_HALTS):
            hosts = [one for one in self._world.hosts if one.is_up and not one.process.paused]
            for host in hosts:
                host.calls.slow_share = 1.0
                host.pause()
            await trio.sleep(_HALT_S)
            for host in hosts:
                host.resume()
            await trio.sleep(self._rng.uniform(0, _MOST_BETWEEN_S))
        for host in self._world.hosts:
            host.calls.slow_share = SLOW_SHARE
