"""Consumers that claim messages for themselves: exclusive ones, and those with key ranges."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import trio

import escapement
from escapement.client.connection.attachment import State
from escapement.errors import Conflict
from escapement.names import TopicName
from escapement.protocol.commands import Command
from escapement.traits import SLOTS
from histories.recording import RecordedInbox
from simulation.checks.claiming import ALL, AUTO, Claim, ClaimCheck, Stay
from simulation.clocks import HOUR_S
from simulation.consuming import EXCLUSIVE, PERMITS, Subscriber, way_of
from simulation.features.feature import Feature, Topics
from simulation.world import World

_TOPIC: Final = "claimed"
_BATCH: Final = 8
_MEAN_S: Final = 7 * HOUR_S
# No key, and keys with slots from 790 to 61,509.
_KEYS: Final = ("", *(f"{digit}{digit}" for digit in range(8)))
# Some overlap. Messages of keys that no consumer claims may wait until the end of the faults.
_HALF: Final = SLOTS // 2
_CLAIMS: Final[tuple[Claim, ...]] = (
    (0, _HALF - 1),
    (_HALF // 2, _HALF + _HALF // 2),
    (_HALF, SLOTS - 1),
    AUTO,
    AUTO,
    None,
)
# How long a consumer waits that was refused.
_REFUSED_S: Final = 10 * HOUR_S


class Claiming(Feature):
    """Sends with and without keys. Two consumers want an exclusive subscription, three ranges."""

    topics: ClassVar[Topics] = {_TOPIC: {"x": EXCLUSIVE, "y": "shared"}}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.check = ClaimCheck(world.terms[world.bundle_of(_TOPIC)])

    def subscribers(self) -> list[Subscriber]:
        return [
            _Claimant(self._world, name, number, self.check)
            for name, count in (("x", 2), ("y", 3))
            for number in range(count)
        ]

    async def run(self, end_ms: int) -> None:
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            messages, delays_ms = self._draw(_TOPIC, self._rng.randint(1, _BATCH), end_ms)
            keys = self._rng.choices(_KEYS, k=2)
            for message in messages:
                message.key = self._rng.choice(keys)
            await self._send(messages, delays_ms)


class _Claimant(Subscriber):
    """Consumers of one subscription, each with a claim."""

    def __init__(self, world: World, name: str, number: int, check: ClaimCheck) -> None:
        super().__init__(world, _TOPIC, name, number)
        self._check = check

    async def _stay(self, client: escapement.Broker) -> None:
        """Ask to be a consumer, stay for some time, and leave."""
        options: dict[str, Any] = {"permits": self._rng.randint(1, PERMITS)}
        if self._subscription == "x":
            options["kind"], claim = EXCLUSIVE, ALL
        else:
            claim = AUTO if self.careful else self._rng.choice(_CLAIMS)
            options["key_range"] = claim
        line = await client._lines.of_topic(TopicName.parse(_TOPIC).full)
        link = line.link
        stay = Stay(self._subscription, claim, self._history.now_s())
        self._check.stays.append(stay)
        try:
            async with client.consumer(_TOPIC, self._subscription, **options) as inbox:
                recorded = RecordedInbox(self._history, self._subscription, inbox, way_of)
                stay.consumer = recorded.consumer
                if link is None or inbox._line.link is not link:
                    stay.asked_again_s.append(self._history.now_s())
                self._note_joins(stay, inbox)
                await self._consume(recorded, inbox, self._draw_stay_s())
                await self._leave(inbox, stay)
        except Conflict:
            self._history.counts["claims refused"] += 1
            # A request that was repeated may be refused because of the earlier one.
            if not stay.joins and link is not None and line.link is link:
                process = way_of(link._stream).process
                self._check.refused(stay, process, self._history.now_s())
                stay.confirmed = True
            stay.closed_s = self._history.now_s()
            await trio.sleep(self._rng.uniform(0, _REFUSED_S))
        finally:
            stay.closed_s = min(stay.closed_s, self._history.now_s())

    async def _leave(self, inbox: escapement.Inbox, stay: Stay) -> None:
        """Leave, and note whether the broker has surely let the consumer go."""
        line, link, left_s = inbox._line, inbox._line.link, self._history.now_s()
        await inbox.aclose()
        in_time = self._history.now_s() < left_s + line.settings.close_timeout_s
        stay.confirmed = link is not None and line.link is link and in_time

    def _note_joins(self, stay: Stay, inbox: escapement.Inbox) -> None:
        """Note when a consumer asks again, and when brokers let it in."""
        linked, ready = inbox._linked, inbox._ready

        def note() -> None:
            if (link := inbox._line.link) is not None:
                way = way_of(link._stream)
                assert way.sent is not None
                stay.joins.append((way.sent.at_s, way))

        def ask_again() -> None:
            stay.asked_again_s.append(self._history.now_s())
            linked()

        def answered(answer: Command) -> None:
            note()
            ready(answer)

        inbox._linked, inbox._ready = ask_again, answered  # type: ignore[method-assign]
        if inbox._state is State.READY:
            note()
