"""Backlog quotas of topics and of a namespace, which refuse publishes or drop messages."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import trio

import escapement
from escapement.errors import BacklogFull, EscapementError
from histories.history import NEVER_MS, Message
from histories.recording import send
from simulation.checks.quotas import Quota, QuotaCheck
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.features.feature import REPEATED_S, STALE_S, Feature, Topics
from simulation.world import World

_NAMESPACE: Final = "public/narrow"
_NAMES: Final = {f"{_NAMESPACE}/shared": "m", f"{_NAMESPACE}/log": "n"}
_BATCH: Final = 4
_MEAN_S: Final = 10 * HOUR_S
# A change of the quota takes hours to reach all brokers, so changes are rare.
_CHANGE_SHARE: Final = 0.06
_MESSAGES: Final = (0, 3, 5, 8)


class Quotas(Feature):
    """Sends to two topics, and changes the quotas of both or of their namespace."""

    namespace: ClassVar[str] = _NAMESPACE
    topics: ClassVar[Topics] = {
        topic: {name: "log" if name == "n" else "shared"} for topic, name in _NAMES.items()
    }

    def __init__(self, world: World) -> None:
        super().__init__(world)
        together = {
            topic: [one for one in _NAMES if world.bundle_of(one) == world.bundle_of(topic)]
            for topic in _NAMES
        }
        self.check = QuotaCheck(together, 3 * MOST_SKEW_MS, [Quota(0, from_ms=0)])
        self._history.expired_ms |= dict.fromkeys(_NAMES, NEVER_MS)  # or dropped

    async def run(self, end_ms: int) -> None:
        await self._change()
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            if self._rng.random() < _CHANGE_SHARE:
                await self._change()
            elif self._rng.random() < 0.2:
                await self._look_for_excess()
            topic = self._rng.choice(list(_NAMES))
            await self._publish(*self._draw(topic, self._rng.randint(1, _BATCH), end_ms))

    async def _change(self) -> None:
        """Set another quota: of each topic, by its own policy or by that of the namespace, or of
        all topics together."""
        quota = Quota(
            self._rng.choice(_MESSAGES),
            counts_all=self._rng.random() < 0.4,
            drops=self._rng.random() < 0.5,
            is_total=self._rng.random() < 0.5,
            called_ms=self._history.now_ms(),
        )
        is_own = not quota.is_total and self._rng.random() < 0.5
        self.check.quotas.append(quota)
        policy: dict[str, Any] = {
            "total_quota_messages": quota.messages if quota.is_total else 0,
            "quota_messages": 0 if quota.is_total or is_own else quota.messages,
            "quota_counts": "all" if quota.counts_all else "due",
            "quota_action": "drop_oldest" if quota.drops else "refuse",
        }

        async def change(client: escapement.Broker) -> None:
            await client.admin("namespaces.update", namespace=_NAMESPACE, policy=policy)
            for topic in _NAMES:
                own = {"quota_messages": quota.messages if is_own else 0}
                await client.admin("topics.update", topic=topic, policy=own)

        await self._ask_surely(next(iter(_NAMES)), change)
        # The brokers of other bundles read the policy of the namespace some time later.
        quota.from_ms = self._history.now_ms() + int((STALE_S + REPEATED_S) * 1000)
        self._history.counts["quota changes"] += 1

    async def _publish(self, messages: list[Message], delays_ms: list[int]) -> None:
        """Send a batch until its receipts come, or give it up while the backlog is full."""
        batch = list(zip(messages, delays_ms, strict=True))
        dedup, unknown = [f"d{message.number}" for message in messages], False
        while True:
            called_ms = self._history.now_ms()
            for message in messages:
                message.refused = False
            try:
                async with self._world.connect() as client:
                    producer = await client.producer(messages[0].topic)
                    receipts = await send(self._history, producer, batch, dedup=dedup)
                if all(receipt.id is not None for receipt in receipts):
                    self._note(batch, receipts)
                    return
            except BacklogFull:
                now_ms = self._history.now_ms()
                self._history.counts["refused for a quota"] += 1
                for message in messages:
                    message.refused = not unknown
                self.check.refused(self._history, messages, called_ms, now_ms)
                if not unknown and self._rng.random() < 0.5:
                    return
            except EscapementError as error:
                if not error.retryable:
                    raise
                unknown = True
            await trio.sleep(self._rng.uniform(1, 3 * HOUR_S))

    def _note(self, batch: list[tuple[Message, int]], receipts: escapement.Receipts) -> None:
        now_ms = self._history.now_ms()
        for message, delay_ms in batch:
            self.check.latest_ms[message.number] = now_ms + delay_ms + 2 * MOST_SKEW_MS
        if not any(receipt.duplicate for receipt in receipts):
            self.check.accepted(self._history, [message for message, _ in batch], now_ms)

    async def _look_for_excess(self) -> None:
        """Compare the backlogs with the quota. An excess counts if it is there again later."""
        for pause_s in (HOUR_S, STALE_S, 0):
            counts = dict.fromkeys(_NAMES, (0, 0))

            async def count(client: escapement.Broker, counts: Any = counts) -> None:
                for topic in counts:
                    (row,) = await client.admin("subscriptions.list", topic=topic)
                    counts[topic] = (row["unacknowledged"], row["in_flight"])

            await self._ask_surely(next(iter(_NAMES)), count)
            if not self.check.over(self._history, counts, self._history.now_ms()):
                return
            await trio.sleep(pause_s)
        self.check.found.append(f"quota: the backlogs of {counts} stay too large")
