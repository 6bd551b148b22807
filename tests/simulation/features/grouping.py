"""Groups of messages that are closed, with a follow-up in another topic."""

from __future__ import annotations

from typing import ClassVar, Final

import trio

import escapement
from escapement import FollowUp
from escapement.errors import GroupClosed
from histories.history import payload_of
from simulation.checks.grouping import Group, GroupCheck
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.features.feature import Feature, Topics
from simulation.world import World

_TOPIC: Final = "grouped"
_SUBSCRIPTION: Final = "g"
_AFTER: Final = "complete"
_BATCH: Final = 3
_MEAN_S: Final = 8 * HOUR_S
# A group is forgotten a day after its completion. Then its name is free.
_KNOWN_MS: Final = 20 * 3_600_000


class Grouping(Feature):
    """Sends one group after the other, closes each, and tries to join it once more."""

    topics: ClassVar[Topics] = {_TOPIC: {_SUBSCRIPTION: "shared"}, _AFTER: {"w": "shared"}}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.check = GroupCheck(_SUBSCRIPTION)

    async def run(self, end_ms: int) -> None:
        while self._history.now_ms() < end_ms:
            group = Group(f"group-{len(self.check.groups)}")
            self.check.groups.append(group)
            for _ in range(self._rng.randint(0, 2)):
                await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
                members, delays_ms = self._draw(_TOPIC, self._rng.randint(1, _BATCH), end_ms)
                group.members += members
                await self._send(members, delays_ms, groups=group.name)
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            await self._close(group)

    async def _close(self, group: Group) -> None:
        """Close a group, again until the answer comes."""
        now_ms = self._history.now_ms()
        follow_up = self._history.publish(_AFTER, "", now_ms - MOST_SKEW_MS)
        group.follow_up = follow_up.number
        then = FollowUp(payload_of(follow_up), _AFTER)

        async def close(client: escapement.Broker) -> None:
            await client.groups.close(_TOPIC, group.name, _SUBSCRIPTION, then)

        await self._ask_surely(_TOPIC, close)
        group.closed = True
        self._history.counts["groups closed"] += 1
        if self._rng.random() < 0.3:
            await self._join_late(group, now_ms)

    async def _join_late(self, group: Group, closing_ms: int) -> None:
        (late,), delays_ms = self._draw(_TOPIC, 1, self._history.now_ms())
        try:
            await self._send([late], delays_ms, groups=group.name)
        except GroupClosed:
            late.refused = True
            return
        if self._history.now_ms() < closing_ms + _KNOWN_MS:
            self.check.found.append(f"group: message {late.number} joined {group.name} late")
