"""Steps of consumers, subscriptions and their policies."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import escapement
from escapement.client import delivery_times
from escapement.clock import moment
from escapement.storage.catalog.catalog import SubscriptionRecord
from simulation.exact.checks.log_order import check_beginning
from simulation.exact.model import KINDS, MESSAGE_BYTES, NEVER_MS, WITH_DEAD_LETTERS, Expectation
from simulation.exact.workload import TOPIC, Workload

HALVES = [(0, 32_767), (32_768, 65_535)]
LIMITS = [
    "ttl_ms", "quota_messages", "quota_bytes", "max_publish_rate", "max_publish_rate_per_producer",
]  # fmt: skip


class Subscribers(Workload):
    """Steps that add, remove, seek and limit consumers and subscriptions."""

    async def subscribe(self, name: str | None = None) -> None:
        if len(self.inboxes) >= 5:
            return
        name = name or self.rng.choice(sorted(KINDS))
        is_shared = KINDS[name] == "shared"
        where, expectation = await self.choose_position(KINDS[name])
        is_new = name not in self.model.expectations
        if is_new:
            self.model.expectations[name] = expectation
            self.model.policies[name] = {}
        wanted = self.rng.choice([None, None, "auto", *HALVES]) if is_shared else None
        try:
            await self.join(name, position=where, permits=9, key_range=wanted)
        except escapement.Conflict:
            return
        if is_new and not is_shared:
            self.check_start(name, expectation, where)
        elif is_new:
            await self.limit(name, {"order": self.rng.choice(["any", "key", "topic"])})
        if name in WITH_DEAD_LETTERS:
            await self.limit(name, self.dead_letter_policy(name))

    def dead_letter_policy(self, name: str) -> dict[str, Any]:
        """Return a random dead-letter policy for a subscription."""
        for_all = self.rng.choice([False, True])  # expired and dropped messages become dead letters
        dead_letter_topic = self.rng.choice(["", "", "t/n/failed", "t/n/dead"])
        self.model.expectations[name].dead_letter_topics.add(
            dead_letter_topic or f"{TOPIC}-{name}-DLQ"
        )
        more = {"expired_to_dead_letter": for_all, "dropped_to_dead_letter": for_all}
        return {"max_deliveries": 2, "dead_letter_topic": dead_letter_topic, **more}

    async def limit(self, name: str, policy: Mapping[str, Any]) -> None:
        """Change the policy of a subscription, or of the topic (no name)."""
        before = self.model.policies[name]
        assert before is not None
        self.model.policies[name] = None  # unknown until the answer

        async def ask() -> None:
            if name:
                names = {"topic": TOPIC, "subscription": name}
                await self.broker.admin("subscriptions.update", **names, policy=policy)
                expectation = self.model.expectations[name]
                expectation.deliveries_ms = []
                if "order" in policy:
                    expectation.delivered_before_order |= expectation.delivered.keys()
            else:
                await self.broker.admin("topics.update", topic=TOPIC, policy=policy)
                self.model.pass_time(self.now_ms)
                self.model.rated_from = self.model.end
            self.model.policies[name] = {**before, **policy}
            self.model.pass_time(self.now_ms)

        await self.ask_again_after_crash(ask)

    async def choose_position(self, kind: str) -> tuple[str | int | datetime, Expectation]:
        """Return a random position, and the expectation of a subscription that begins there."""
        # All messages are committed at this moment.
        end, now_ms = self.model.end, self.now_ms
        where: str | int | datetime
        match self.rng.randrange(4):
            case 0:
                where, since = "earliest", (0, 0)
            case 1:
                where, since = "latest", (end, now_ms + 1)
            case 2:
                where = self.rng.randint(0, end)
                since = where, NEVER_MS
            case _:
                at_ms = now_ms + self.rng.randint(-10_000, 1_000) * 1000
                where, since = moment(at_ms), (end, at_ms)
        begin = await self.log_begin()
        expectation = self.model.expectation(*since, now_ms, kind, begin)
        if kind == "shared" and (since[0] < end or since[1] <= now_ms):
            expectation.deleted = set(range(begin)) - self.restated(begin)
        return where, expectation

    def restated(self, begin: int) -> set[int]:
        """Return the messages before ``begin`` that a later log row restates."""
        topic = self.world.server.registry.topics.get(TOPIC)
        topic = None if topic is None else self.world.server.registry.active.get(topic.id)
        return set() if topic is None else set(topic.amendments.moves.between(0, begin).tolist())

    async def serve(self) -> None:
        """Start a broker. It still has messages that were deleted since the last checkpoint."""
        await super().serve()
        again = self.restated(await self.log_begin())
        for expectation in self.model.expectations.values():
            expectation.deleted -= again

    async def log_begin(self) -> int:
        """Return the first offset of the log. Earlier messages were relocated or deleted."""
        services = self.world.server.services
        topic = services.registry.topics.get(TOPIC)
        if topic is None:
            return self.model.end
        return await services.reader.first_offset(topic.id, self.model.end)

    def check_start(self, name: str, expectation: Expectation, where: str | int | datetime) -> None:
        """Check where a new subscription in log order began."""
        record = self._record(name)
        if isinstance(where, datetime):
            expectation.since_offset = record.start_offset
            check_beginning(self.model, expectation, int(where.timestamp() * 1000))
        assert record.start_offset == expectation.since_offset

    async def seek(self) -> None:
        names = sorted(self.model.expectations.keys() - set(WITH_DEAD_LETTERS))
        if not names:
            return
        name = self.rng.choice(names)
        where, expectation = await self.choose_position(KINDS[name])
        before = self._record(name)

        def see() -> None:
            if self._record(name).id == before.id:
                return  # the seek has not happened; other fields of the record may have changed
            if expectation.in_log_order:
                self.check_start(name, expectation, where)
            self.model.expectations[name] = expectation

        self.unanswered_seeks.append(see)
        attached = [inbox for other, inbox, _ in self.inboxes if other == name]
        if attached:
            await self.rng.choice(attached).seek(where)
        else:
            position = str(delivery_times.position(where, TOPIC))
            names_ = {"topic": TOPIC, "subscription": name}
            await self.broker.admin("subscriptions.seek", **names_, position=position)
        self.unanswered_seeks.remove(see)
        see()
        assert self.model.expectations[name] is expectation

    async def unsubscribe(self) -> None:
        """Delete a subscription that has consumers. They get no more messages."""
        names = sorted(self.model.expectations.keys() - set(WITH_DEAD_LETTERS))
        if not names:
            return
        name = self.rng.choice(names)
        await self.broker.admin("subscriptions.delete", topic=TOPIC, subscription=name, force=True)
        await self.catch_up()
        del self.model.expectations[name], self.model.policies[name]
        gone = [inbox for other, inbox, _ in self.inboxes if other == name]
        self.inboxes = [one for one in self.inboxes if one[0] != name]
        for inbox in gone:
            await inbox.aclose()

    def _record(self, name: str) -> SubscriptionRecord:
        return next(
            record
            for record in self.world.server.registry.all_subscriptions()
            if record.name == name
        )

    async def leave(self) -> None:
        if self.inboxes:
            name, inbox, _ = self.inboxes.pop(self.rng.randrange(len(self.inboxes)))
            await inbox.aclose()
            expectation = self.model.expectations[name]
            expectation.left_ms = max(expectation.left_ms, self.now_ms)
            expectation.end_deliveries(inbox._id)

    async def settings(self) -> None:
        """Change the policy of a subscription."""
        if self.model.expectations:
            name = self.rng.choice(sorted(self.model.expectations))
            changes: list[dict[str, Any]] = [
                {"max_rate": self.rng.choice([0, 0.5, 20])},
                {"max_in_flight": self.rng.choice([0, 3])},
                {"max_backoff_ms": self.rng.choice([0, 30_000])},
            ]
            if name in WITH_DEAD_LETTERS:
                changes.append(self.dead_letter_policy(name))
            if KINDS[name] == "shared":
                changes += [
                    {"order": self.rng.choice(["any", "key", "key", "topic"])},
                    {"on_retry": self.rng.choice(["hold", "skip"])},
                    {"dispatch": self.rng.choice(["round_robin", "least_busy"])},
                    {"priority_ageing_ms": self.rng.choice([0, 1000, 60_000])},
                ]
            await self.limit(name, self.rng.choice(changes))

    async def limits(self) -> None:
        """Change the policy of the topic."""
        change = self.rng.choice(
            [
                {"ttl_ms": self.rng.choice([0, 60_000, 3_600_000])},
                self.quota("refuse"),
                self.quota("drop_oldest"),
                {"max_publish_rate": self.rng.choice([0, 5])},
                {"max_publish_rate_per_producer": self.rng.choice([0, 2])},
                dict.fromkeys(LIMITS, 0),
            ]
        )
        await self.limit("", change)

    def quota(self, action: str) -> dict[str, Any]:
        """Return a quota of five messages, in messages or bytes."""
        bounds = [(5, 0), (0, 5 * MESSAGE_BYTES + MESSAGE_BYTES // 2)]
        messages, size_bytes = self.rng.choice(bounds)
        return {
            "quota_messages": messages,
            "quota_bytes": size_bytes,
            "quota_counts": self.rng.choice(["due", "due", "all"]),
            "quota_action": action,
        }

    async def pause(self) -> None:
        """Pause the topic or a subscription, for some time or until it is resumed."""
        name = self.rng.choice(["", *sorted(self.model.expectations)])
        seconds = self.rng.choice([30, 3600, None])
        until_ms = NEVER_MS if seconds is None else self.now_ms + seconds * 1000
        until = None if seconds is None else moment(until_ms)
        before = self.model.policies[name]
        assert before is not None
        await self.broker.pause(TOPIC, name or None, until=until)
        self.model.policies[name] = {**before, "paused_until_ms": until_ms}

    async def resume(self) -> None:
        paused = [n for n in self.model.policies if self.model.policy(n, "paused_until_ms")]
        for name in paused:
            before = self.model.policies[name]
            self.model.policies[name] = {**(before or {}), "paused_until_ms": 0}
            await self.broker.resume(TOPIC, name or None)
