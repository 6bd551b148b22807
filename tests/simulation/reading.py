"""A client that reads topics, most often at a broker that may have lost its lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import trio

import escapement
from escapement import MessageId
from escapement.errors import EscapementError, NotFound
from escapement.names import TopicName
from histories.history import number_of
from histories.reads import Read, Shown, is_waiting, wrong_count, wrong_page, wrong_states
from simulation.clocks import HOUR_S
from simulation.host import Host
from simulation.world import World

# How often it looks whether a broker has lost its lease.
_LOOK_S: Final = 0.5 * HOUR_S
# The shares of looks at which it reads: at such a broker, and at any other one.
_LOST_SHARE: Final = 0.7
_SHARE: Final = 0.03
# A forecast of all messages: none is due so late.
_WITHIN: Final = timedelta(days=60)
# Messages of which one is shown.
_LATEST: Final = 40


class Reader:
    """A client that knows the address of one process, and reads there.

    It reads at another process only if that one names it as the owner of the topic. The answers
    are checked as soon as they come.

    Args:
      topics: the topics that it reads.
    """

    def __init__(self, world: World, topics: Sequence[str]) -> None:
        self._world = world
        self._topics = topics
        self._history = world.history
        self._rng = world.chance("reader")
        self._reads: dict[str, Callable[[escapement.Broker, str], Awaitable[Iterator[str]]]] = {
            "peek": self._peek,
            "forecast": self._forecast,
            "preview": self._preview,
            "show": self._show,
        }

    async def run(self, end_ms: int) -> None:
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _LOOK_S))
            lost = [host for host in self._world.hosts if host.has_lost_a_lease]
            if self._rng.random() < (_LOST_SHARE if lost else _SHARE):
                self._history.counts["reads after a lease"] += bool(lost)
                await self._read(self._rng.choice(lost or self._world.hosts))

    async def _read(self, host: Host) -> None:
        topic, kind = self._rng.choice(self._topics), self._rng.choice(list(self._reads))
        try:
            async with self._world.connect(at=host) as client:
                self._history.surprises.extend(await self._reads[kind](client, topic))
            self._history.counts["reads"] += 1
        except EscapementError as error:
            if not error.retryable:
                raise
            self._history.counts["reads without an answer"] += 1

    async def _peek(self, client: escapement.Broker, topic: str) -> Iterator[str]:
        called_ms = self._history.now_ms()
        found = [one async for one in client.peek(topic)]
        read = Read("peek", topic, called_ms, self._history.now_ms())
        shown = [
            Shown(number_of(one.payload), one.id.offset, _unix_ms(one.due_at)) for one in found
        ]
        return wrong_page(self._history, read, shown)

    async def _forecast(self, client: escapement.Broker, topic: str) -> Iterator[str]:
        called_ms = self._history.now_ms()
        found = await client.forecast(topic, by=timedelta(days=1), within=_WITHIN)
        read = Read("forecast", topic, called_ms, self._history.now_ms())
        return wrong_count(self._history, read, found.total)

    async def _preview(self, client: escapement.Broker, topic: str) -> Iterator[str]:
        """Count the messages that a bulk cancel would cancel."""
        called_ms = self._history.now_ms()
        found = await client.bulk.preview(topic, everything=True)
        read = Read("preview", topic, called_ms, self._history.now_ms())
        return wrong_count(self._history, read, found.messages)

    async def _show(self, client: escapement.Broker, topic: str) -> Iterator[str]:
        messages = [one for one in self._history.messages if one.topic == topic and one.offset >= 0]
        if not messages:
            return iter(())
        message = self._rng.choice(messages[-_LATEST:])
        called_ms = self._history.now_ms()
        try:
            found = await client.show(MessageId(TopicName.parse(topic).full, message.offset))
        except NotFound as error:  # the log may have forgotten it
            read = Read("show", topic, called_ms, self._history.now_ms())
            if not is_waiting(self._history, read, message):
                return iter(())
            return iter([f"{read} does not find message {message.number}: {error}"])
        read = Read("show", topic, called_ms, self._history.now_ms())
        states = {one.subscription: one.state for one in found.subscriptions}
        return wrong_states(self._history, read, message, states)


def _unix_ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
