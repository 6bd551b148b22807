"""A topic that is deleted and created again, with its messages in log and index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

import escapement
from escapement.errors import AlreadyExists, NotFound
from histories.history import NEVER_MS, number_of
from simulation.checks.deleting import DeleteCheck
from simulation.clocks import HOUR_S
from simulation.features.feature import STALE_S, Feature
from simulation.world import World

_TOPIC: Final = "fleeting"
_BATCH: Final = 4
_MEAN_S: Final = 16 * HOUR_S


class Deleting(Feature):
    """Creates the topic with a subscription, sends, looks, and deletes it, again and again.

    Nobody consumes the messages. So the log and, as they are pending, the index have all of them.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.check = DeleteCheck()
        self._history.topics[_TOPIC] = []  # its messages are in several topics

    async def run(self, end_ms: int) -> None:
        await self._ask_twice(self._create, AlreadyExists)
        await self._ask_twice(self._keep_keys, NotFound)
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            messages, delays_ms = self._draw(_TOPIC, self._rng.randint(1, _BATCH), end_ms)
            self.check.life += messages
            await self._send(messages, delays_ms)
            if self._rng.random() < 0.5:
                await self.look()
            if self._rng.random() < 0.3:
                await self._begin_again()

    async def _begin_again(self) -> None:
        await self._ask_twice(self._delete, NotFound)
        for message in self.check.life:
            # Another message may get its offset.
            message.offset, message.confirmed_ms = -1, NEVER_MS
            self._history.copies.pop(message.number, None)
        self.check.life = []
        self._history.counts["topics deleted"] += 1
        await trio.sleep(self._rng.uniform(0, self._rng.choice([0, HOUR_S])))
        await self._ask_twice(self._create, AlreadyExists)
        await self._ask_twice(self._keep_keys, NotFound)

    async def _ask_twice(
        self, ask: Callable[[escapement.Broker], Awaitable[None]], done: type[Exception]
    ) -> None:
        """Make a request, which may fail because an earlier try has done it.

        A broker that has lost its lease may refuse it for the same reason, so ask again later.
        """
        try:
            await self._ask_surely(_TOPIC, ask)
        except done:
            await trio.sleep(STALE_S)
            with suppress(done):
                await self._ask_surely(_TOPIC, ask)

    async def _delete(self, client: escapement.Broker) -> None:
        await client.admin("topics.delete", topic=_TOPIC, force=True)

    async def _create(self, client: escapement.Broker) -> None:
        await client.admin("subscriptions.create", topic=_TOPIC, subscription="keeper")

    async def _keep_keys(self, client: escapement.Broker) -> None:
        """Let the topic keep dedup keys for as long as a client may repeat a batch."""
        await client.admin("topics.update", topic=_TOPIC, policy={"dedup_window_ms": "6d"})

    async def look(self) -> None:
        """Compare the log and the index with the messages that were sent.

        A broker that does not know yet that it has lost its lease may show an earlier state. So a
        difference counts if it is still there when no broker does.
        """
        if not await self._differences():
            return
        await trio.sleep(STALE_S)
        self.check.found += await self._differences()

    async def _differences(self) -> list[str]:
        logged: list[int] = []
        pending: list[int] = []

        async def read(client: escapement.Broker) -> None:
            logged[:] = [
                number_of(entry.payload) async for page in client.read(_TOPIC) for entry in page
            ]
            pending[:] = [number_of(entry.payload) async for entry in client.peek(_TOPIC)]

        await self._ask_surely(_TOPIC, read)
        return [
            *self.check.differs("the log", logged),
            *self.check.differs("the index", pending),
        ]
