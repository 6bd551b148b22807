"""A client that redrives dead letters, which are often in another bundle than their topic."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

import trio

import escapement
from escapement.client.administration.bulk import BulkChange
from escapement.errors import EscapementError, NotFound
from histories.recording import list_dead_letters, redrive
from simulation.checks.redriving import BulkRedriveCheck
from simulation.clocks import HOUR_S
from simulation.features.bulk_changes import BulkFeature
from simulation.features.feature import BACKOFF, Topics
from simulation.world import World
from support.bundle_topics import topic_of_each_bundle

_TOPIC: Final = "fragile"
_SUBSCRIPTION: Final = "f"
_BATCH: Final = 3
_MEAN_S: Final = 10 * HOUR_S
# A dead letter is listed within this time after its message died: it may have to wait for two
# brokers and a take-over, and a broker that has lost its lease does not list it.
_LISTED: Final = timedelta(days=4)


class Redriving(BulkFeature):
    """Messages whose first failure is their death, and redrives of some dead letters.

    A bulk redrive sends the dead letters that are old enough to be known.
    """

    topics: ClassVar[Topics] = {_TOPIC: {_SUBSCRIPTION: "shared"}}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # If there are several bundles, it is in another one than its topic.
        graveyards = topic_of_each_bundle(world.bundles, "graveyard")
        self._graveyard = graveyards[world.bundle_of(_TOPIC) - 1]
        self.policies = {
            _SUBSCRIPTION: {**BACKOFF, "max_deliveries": 1, "dead_letter_topic": self._graveyard}
        }
        self._history.max_deliveries[_SUBSCRIPTION] = 1
        self.check = BulkRedriveCheck(_SUBSCRIPTION)
        self._is_healed = False

    def heal(self) -> None:
        self._is_healed = True

    async def run(self, end_ms: int) -> None:
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            (act,) = self._rng.choices([self._redrive, self._redrive_old, None], [6, 3, 11])
            if act is not None:
                await act(0.3)
            else:
                await self._send(*self._draw(_TOPIC, self._rng.randint(1, _BATCH), end_ms))

    async def look(self) -> None:
        """Redrive all dead letters, and list them again.

        The second listing shows which redriven messages must still come.
        """
        await self._redrive(1.0)
        await self._redrive(0.0)

    async def _redrive(self, share: float) -> None:
        """List all dead letters, and redrive a share of them."""
        try:
            async with self._world.connect() as client:
                await self._list(client)
                remaining = self._history.dead_letters[_SUBSCRIPTION].remaining
                if chosen := [one for one in sorted(remaining) if self._rng.random() < share]:
                    names = {"dead_letter_topic": self._graveyard}
                    await redrive(self._history, client, _TOPIC, _SUBSCRIPTION, chosen, **names)
        except NotFound:
            return  # there is no dead letter yet
        except EscapementError as error:
            if not error.retryable:
                raise
            self._history.counts["redrives without an answer"] += 1

    async def _list(self, client: escapement.Broker) -> dict[int, int]:
        """Note all dead letters. Return their due times."""
        found = self._history.dead_letters[_SUBSCRIPTION]
        before = found.remaining - found.asked
        names = {"dead_letter_topic": self._graveyard}
        listed = await list_dead_letters(self._history, client, _TOPIC, _SUBSCRIPTION, **names)
        if not self._is_healed:  # the broker may have shown an earlier state
            found.remaining |= before
        return listed

    async def _redrive_old(self, share: float) -> None:
        """Redrive all dead letters of some time ago by a bulk change."""
        until = datetime.fromtimestamp(self._history.now_ms() / 1000, UTC) - _LISTED
        old: set[int] = set()

        async def find(client: escapement.Broker) -> None:
            listed = await self._list(client)
            old.update(one for one, due_ms in listed.items() if due_ms < until.timestamp() * 1000)

        async def start(client: escapement.Broker, reason: str) -> BulkChange:
            return await client.bulk.redrive(
                _TOPIC,
                _SUBSCRIPTION,
                dead_letter_topic=self._graveyard,
                due_until=until,
                reason=reason,
            )

        try:
            await self._ask_surely(_TOPIC, find)
        except NotFound:
            return  # there is no dead letter yet
        if old:
            self._history.dead_letters[_SUBSCRIPTION].asked |= old
            change = await self._carry_out(_TOPIC, start)
            if change is not None and change.state == "done":
                self.check.done |= old
