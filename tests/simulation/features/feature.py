"""A feature of the broker that a run uses: its topics, its client and its check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

import trio

import escapement
from escapement.errors import AlreadyExists, EscapementError
from histories.history import Message
from simulation.checks.check import Check
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.consuming import Subscriber, random_delay_ms
from simulation.features.sending import send_surely
from simulation.world import World

# topic -> subscription -> shared, key, log, ``EXCLUSIVE`` or ``KEPT``
Topics = Mapping[str, Mapping[str, str]]
# The kind of a subscription without consumers, for which the log keeps its messages.
KEPT: Final = "kept"
Policies = Mapping[str, Mapping[str, Any]]
# Retries come some minutes or an hour later.
BACKOFF: Final[Mapping[str, Any]] = {"min_backoff_ms": 60_000, "max_backoff_ms": 3_600_000}

# A broker that has lost its lease may answer reads for this time, until it reaches the database.
STALE_S: Final = 40 * HOUR_S
# A request without an answer may still take effect, until its broker goes on or has ended.
REQUEST_S: Final = 24 * HOUR_S
# An answer can be that of a repeated request, while the first one is still on its way.
REPEATED_S: Final = 600.0


class Feature:
    """The base of all features. A feature has one client, which calls ``run``."""

    check: Check | None = None  # it has the answers to the client
    namespace: ClassVar[str] = ""  # of the topics, if it is not the default one
    topics: ClassVar[Topics] = {}
    topic_policies: ClassVar[Policies] = {}
    consumers: ClassVar[int] = 1  # of each subscription
    amended: ClassVar[Sequence[str]] = ()  # topics whose messages are cancelled and rescheduled

    def __init__(self, world: World) -> None:
        self._world = world
        self._history = world.history
        self._rng = world.chance(type(self).__name__)
        # Of subscriptions that have more than ``BACKOFF``.
        self.policies: Policies = {}

    async def begin(self) -> None:
        """Create the namespace, before the topics are created."""

        async def create(client: escapement.Broker) -> None:
            with suppress(AlreadyExists):  # an earlier request has created it
                await client.admin("namespaces.create", namespace=self.namespace)

        if self.namespace:
            await self._ask_surely(self.namespace, create)

    def subscribers(self) -> list[Subscriber]:
        """Return the consumers of its subscriptions."""
        return subscribers_of(self._world, self.topics, self.consumers)

    async def run(self, end_ms: int) -> None:
        """Use the feature until the end; a message may be due then at the latest."""
        raise NotImplementedError

    async def consume(self) -> None:
        """Run consumers of another kind than ``subscribers``, until cancelled."""

    def _draw(self, topic: str, count: int, end_ms: int) -> tuple[list[Message], list[int]]:
        """Draw messages, which are due by the end, and their delays."""
        now_ms = self._history.now_ms()
        left_ms = max(end_ms - now_ms, 0)
        delays_ms = [random_delay_ms(self._rng, left_ms) for _ in range(count)]
        return [
            self._history.publish(topic, "", now_ms + delay_ms - MOST_SKEW_MS)
            for delay_ms in delays_ms
        ], delays_ms

    async def _send(
        self, messages: Sequence[Message], delays_ms: Sequence[int], **columns: Any
    ) -> escapement.Receipts:
        """Send messages of one topic until their receipts come; see ``send_surely``."""
        return await send_surely(self._world, self._rng, messages, delays_ms, **columns)

    async def _ask_surely(
        self, topic: str, ask: Callable[[escapement.Broker], Awaitable[None]]
    ) -> None:
        """Make a request to the broker of a topic, again until its answer comes."""
        while True:
            try:
                async with self._world.connect() as client:
                    return await ask(client)
            except EscapementError as error:
                if not error.retryable:
                    raise
                await trio.sleep(REQUEST_S)

    def heal(self) -> None:
        """Note that all faults have ended."""

    async def look(self) -> None:
        """Look at the results of all requests. The run calls it now and then after all faults."""


def subscribers_of(world: World, topics: Topics, count: int) -> list[Subscriber]:
    """Return a number of consumers for each subscription."""
    return [
        Subscriber(world, topic, name, number)
        for topic, names in topics.items()
        for name, kind in names.items()
        if kind != KEPT
        for number in range(count)
    ]
