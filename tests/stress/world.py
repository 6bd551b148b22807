"""The state of one run: the broker, the history, and whether the run is over."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import trio

import escapement
from escapement.errors import AlreadyExists, EscapementError, IndexDamaged
from histories.checker import violations
from histories.history import History, RealClock
from histories.storing import unfinished
from stress.application import Application

# With two bundles, each of the topics belongs to another one, with its dead letters.
PLAIN: Final = "orders"
KEYED: Final = "keyed"
# Topics by subscription. The first two bound deliveries, and so have dead letters.
WITH_DEAD_LETTERS: Final = {"p": PLAIN, "k": KEYED}
WITHOUT_DEAD_LETTERS: Final = {"q": PLAIN}
SUBSCRIPTIONS: Final = WITH_DEAD_LETTERS | WITHOUT_DEAD_LETTERS
# Of runs with an application that acknowledges in its own transactions.
IN_TRANSACTIONS: Final = {"x": PLAIN, "y": KEYED}
MAX_DELIVERIES: Final = 2
ACK_WAIT_MS: Final = 5_000
# Deliveries and confirmations travel over different connections. A delivery may be received this
# long after a confirmation that was sent later.
SENDING_S: Final = 1.0
POLICIES: Final[dict[str, dict[str, Any]]] = {
    "p": {
        "max_deliveries": MAX_DELIVERIES,
        "min_backoff_ms": 50,
        "max_backoff_ms": 5_000,
        "ack_wait_ms": ACK_WAIT_MS,
    },
    "k": {
        "max_deliveries": MAX_DELIVERIES,
        "min_backoff_ms": 50,
        "max_backoff_ms": 5_000,
        "ack_wait_ms": ACK_WAIT_MS,
        "order": "key",
    },
    **{
        name: {"min_backoff_ms": 50, "max_backoff_ms": 5_000, "ack_wait_ms": ACK_WAIT_MS}
        for name in (*WITHOUT_DEAD_LETTERS, *IN_TRANSACTIONS)
    },
}


def passes(error: EscapementError) -> bool:
    """Return whether a client may meet this error while the broker crashes or repairs itself."""
    return error.retryable or isinstance(error, IndexDamaged)


def new_history(application: Application | None = None) -> History:
    """Return a history of the topics and subscriptions above."""
    history = History(RealClock())
    history.topics = {PLAIN: ["p", "q"], KEYED: ["k"]}
    history.kinds = {"p": "shared", "q": "shared", "k": "key"}
    if application is not None:
        for name, topic in IN_TRANSACTIONS.items():
            history.topics[topic].append(name)
            history.kinds[name] = "shared"
    history.max_deliveries = dict.fromkeys(WITH_DEAD_LETTERS, MAX_DELIVERIES)
    history.troubles = []
    history.sending_s = SENDING_S
    history.expiry_s = ACK_WAIT_MS / 1_000 - SENDING_S
    return history


@dataclass
class World:
    """One run."""

    url: str  # of the broker
    chance: random.Random
    history: History = field(default_factory=new_history)
    longest_ms: int = 60_000  # of delays
    publish_pause_s: float = 0.4  # of each producer, on average
    amend_pause_s: float = 1.0  # the longest between two changes of messages
    over: bool = False  # nothing new is published, amended or damaged
    application: Application | None = None  # its clients run too

    @property
    def subscriptions(self) -> dict[str, str]:
        """The topics by subscription."""
        return SUBSCRIPTIONS | ({} if self.application is None else IN_TRANSACTIONS)

    def unfinished(self) -> Iterator[str]:
        """Yield what must still happen."""
        yield from unfinished(self.history)
        if self.application is not None:
            yield from self.application.transactions.unfinished(self.history)

    def violations(self) -> Iterator[str]:
        """Yield the broken promises of a run that is over."""
        yield from violations(self.history, drained=True)
        if self.application is not None:
            yield from self.application.transactions.unfinished(self.history)
            yield from self.application.transactions.violations(self.history)


async def set_up(world: World, client: escapement.Broker) -> None:
    """Create topics and subscriptions, with the shortest retention of the log."""
    for name, topic in world.subscriptions.items():
        await _ask(
            client, "subscriptions.create", topic=topic, subscription=name, policy=POLICIES[name]
        )
    policy = {"retention_ms": "0s"}
    await _ask(client, "namespaces.update", namespace="public/default", policy=policy)


async def _ask(client: escapement.Broker, verb: str, **arguments: Any) -> None:
    """Ask until the answer comes from a broker that does not die meanwhile."""
    while True:
        try:
            with suppress(AlreadyExists):  # the answer to an earlier try was lost
                await client.admin(verb, **arguments)
            return
        except EscapementError as error:
            if not passes(error):
                raise
            await trio.sleep(0.1)
