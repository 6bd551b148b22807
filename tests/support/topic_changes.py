"""Random changes to a topic of a broker, and the state that they leave in memory."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any, Final

import numpy as np

import escapement
from escapement import testing
from escapement.broker.topic.topic import Topic
from escapement.dedup import digests
from escapement.testing import World

TOPIC: Final = "t"
KEYS: Final = ["k0", "k1", "k2"]
DEDUP: Final = [f"d{number}" for number in range(6)]
ALL_CHANGES: Final = (
    "publish", "publish with dedup keys", "publish in a group", "acknowledge", "give back",
    "cancel", "reschedule", "advance",
)  # fmt: skip


class TopicChanges:
    """Changes to one topic, which has two shared subscriptions and an exclusive one."""

    def __init__(self, world: World, broker: escapement.Broker, rng: random.Random) -> None:
        self._world = world
        self._broker = broker
        self._rng = rng

    async def begin(self, *, exclusive: bool) -> None:
        """Create the topic and its subscriptions."""
        admin = self._broker.admin
        await admin("subscriptions.create", topic=TOPIC, subscription="plain")
        await admin(
            "subscriptions.create", topic=TOPIC, subscription="keyed", policy={"order": "key"}
        )
        if exclusive:
            await admin(
                "subscriptions.create", topic=TOPIC, subscription="exclusive", kind="exclusive"
            )

    async def change(self, kinds: Collection[str], count: int) -> None:
        """Make random changes of these kinds."""
        for _ in range(count):
            await self._change(self._rng.choice(list(kinds)))

    async def _change(self, kind: str) -> None:
        match kind:
            case "publish":
                await self._publish()
            case "publish with dedup keys":
                await self._publish(dedup=True)
            case "publish in a group":
                await self._publish(groups=self._rng.choice(["g0", "g1"]))
            case "acknowledge" | "give back":
                await self._consume(kind)
            case "cancel":
                await self._broker.cancel(self._some_offsets(), topic=TOPIC)
            case "reschedule":
                delay = (self._rng.randrange(90), "s")
                await self._broker.reschedule(self._some_offsets(), delay=delay, topic=TOPIC)
            case "advance":
                await self._world.clock.advance(seconds=self._rng.randrange(20))

    async def _publish(self, dedup: bool = False, **options: Any) -> None:
        rng = self._rng
        count = rng.randint(1, 4)
        if dedup:
            options["dedup"] = rng.sample(DEDUP, count)
        async with await self._broker.producer(TOPIC, name=rng.choice(["p", "q"])) as producer:
            await producer.send_many(
                [b"%d" % rng.randrange(1000) for _ in range(count)],
                delay=[(rng.choice([0, 0, 30, 600]), "s") for _ in range(count)],
                keys=[rng.choice(KEYS) for _ in range(count)],
                priorities=[rng.choice([10, 50, 90]) for _ in range(count)],
                **options,
            )

    async def _consume(self, kind: str) -> None:
        """Take the due messages of a subscription; acknowledge all, or give some back."""
        name = self._rng.choice(["plain", "keyed"])
        async with self._broker.consumer(TOPIC, name) as inbox:
            while messages := await testing.arrived(inbox):
                given_back = []
                if kind == "give back":
                    given_back = [one for one in messages if self._rng.random() < 0.5]
                    await inbox.nack(given_back, "1h")
                rest = [one for one in messages if one not in given_back]
                await inbox.ack(rest, durable=True)

    def _some_offsets(self) -> list[int]:
        """Return offsets of some messages, or of one that does not exist yet."""
        end = topic_of(self._world).next_offset
        return sorted({self._rng.randrange(end + 1) for _ in range(self._rng.randint(1, 3))})


def topic_of(world: World) -> Topic:
    """Return the runtime of the topic, which becomes active."""
    registry = world.server.registry
    (record,) = registry.topics.values()
    return registry.activate(record.id)


def state_of(world: World) -> dict[str, Any]:
    """Return what the broker knows about the topic, as plain values."""
    topic = topic_of(world)
    end = topic.next_offset
    moves = topic.amendments.moves
    found: dict[str, Any] = {
        "end": end,
        "cancelled": topic.amendments.cancelled.to_array(0, end).tolist(),
        "moves": [column.tolist() for column in moves.below(end)],
        "bases": moves.bases(np.arange(end)).tolist(),
        "groups": {
            name: topic.groups.members[name].to_array(0, end).tolist()
            for name in topic.groups.names()
        },
        "dedup": topic.dedup.find(digests(DEDUP), -(1 << 62)).tolist(),
        "producers": {
            name: (one.last_sequence, one.last_offset) for name, one in topic.producers.items()
        },
    }
    for subscription in topic.subscriptions():
        rows, next_ms = subscription.retries.waiting()
        waiting = zip(rows.offsets, rows.due_ms, rows.counts, next_ms, strict=True)
        found[subscription.record.name] = {
            "acknowledged": subscription.acked.to_array(0, end).tolist(),
            "in retry": sorted(tuple(map(int, row)) for row in waiting),
        }
    return found
