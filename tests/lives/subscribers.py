"""Consumers and subscriptions in a life: what lets them come, go, begin again, or limits them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import escapement
from escapement.client import schedule
from escapement.client.schedule import moment
from lives.life import MORTAL, TOPIC, Life
from lives.model import NEVER_MS, Claim

HALVES = [(0, 32_767), (32_768, 65_535)]


class Subscribers(Life):
    """Consumers and subscriptions come, go, begin again, and are limited."""

    async def subscribe(self) -> None:
        if len(self.inboxes) >= 4:
            return
        name = self.rng.choice("abc")
        where, claim = self.place()
        is_new = name not in self.model.claims
        if is_new:
            self.model.claims[name] = claim
            self.model.policies[name] = {}
        wanted = self.rng.choice([None, None, "auto", *HALVES])
        try:
            await self.join(name, position=where, permits=9, key_range=wanted)
        except escapement.Conflict:
            return
        if is_new:
            await self.limit(name, {"order": self.rng.choice(["any", "key", "topic"])})
        if name == MORTAL:
            await self.limit(name, {"max_deliveries": 2})

    async def limit(self, name: str, policy: Mapping[str, Any]) -> None:
        """Change the policy of a subscription, or of the topic (no name)."""
        before = self.model.policies[name]
        assert before is not None
        self.model.policies[name] = None  # until it is answered nobody knows

        async def ask() -> None:
            if name:
                names = {"topic": TOPIC, "subscription": name}
                await self.broker.admin("subscriptions.update", **names, policy=policy)
                self.model.claims[name].passed_ms = []
            else:
                await self.broker.admin("topics.update", topic=TOPIC, policy=policy)
                self.model.pass_time(self.now_ms)
                self.model.rated_from = self.model.end
            self.model.policies[name] = {**before, **policy}
            self.model.pass_time(self.now_ms)

        await self.in_doubt(ask)

    def place(self) -> tuple[str | int | datetime, Claim]:
        """Somewhere to begin, and what a subscription that begins there must get."""
        # What is committed at this moment is all there is: nothing is under way.
        end, now_ms = self.model.end, self.now_ms
        match self.rng.randrange(4):
            case 0:
                return "earliest", self.model.claim(0, 0, now_ms)
            case 1:
                return "latest", self.model.claim(end, now_ms + 1, now_ms)
            case 2:
                offset = self.rng.randint(0, end)
                return offset, self.model.claim(offset, NEVER_MS, now_ms)
            case _:
                at_ms = now_ms + self.rng.randint(-10_000, 1_000) * 1000
                at = datetime.fromtimestamp(at_ms / 1000, UTC)
                return at, self.model.claim(end, at_ms, now_ms)

    async def seek(self) -> None:
        names = sorted(self.model.claims.keys() - {MORTAL})
        if not names:
            return
        name = self.rng.choice(names)
        where, claim = self.place()
        before = self._record_id(name)

        async def see() -> None:
            if self._record_id(name) != before:
                self.model.claims[name] = claim

        self.doubts.append(see)
        attached = [inbox for other, inbox, _ in self.inboxes if other == name]
        if attached:
            await self.rng.choice(attached).seek(where)
        else:
            position = str(schedule.position(where))
            names_ = {"topic": TOPIC, "subscription": name}
            await self.broker.admin("subscriptions.seek", **names_, position=position)
        self.doubts.remove(see)
        assert self._record_id(name) != before
        self.model.claims[name] = claim

    def _record_id(self, name: str) -> int:
        return next(
            record.id
            for record in self.world.server.registry.all_subscriptions()
            if record.name == name
        )

    async def leave(self) -> None:
        if self.inboxes:
            name, inbox, _ = self.inboxes.pop(self.rng.randrange(len(self.inboxes)))
            await inbox.aclose()
            claim = self.model.claims[name]
            claim.left_ms = max(claim.left_ms, self.now_ms)
            claim.let_go(inbox.id)

    async def settings(self) -> None:
        """Something about one subscription is said otherwise."""
        if self.model.claims:
            name = self.rng.choice(sorted(self.model.claims))
            change = self.rng.choice(
                [
                    {"order": self.rng.choice(["any", "key", "key", "topic"])},
                    {"on_retry": self.rng.choice(["hold", "skip"])},
                    {"max_rate": self.rng.choice([0, 0.5, 20])},
                    {"max_in_flight": self.rng.choice([0, 3])},
                    {"dispatch": self.rng.choice(["round_robin", "least_busy"])},
                    {"max_backoff_ms": self.rng.choice([0, 30_000])},
                    {"priority_ageing_ms": self.rng.choice([0, 1000, 60_000])},
                ]
            )
            await self.limit(name, change)

    async def limits(self) -> None:
        """Something about the topic is said otherwise."""
        change = self.rng.choice(
            [
                {"ttl_ms": self.rng.choice([0, 60_000, 3_600_000])},
                {"quota_messages": 5},
                {"quota_messages": 5},
                {"max_publish_rate": self.rng.choice([0, 5])},
                {"ttl_ms": 0, "quota_messages": 0, "max_publish_rate": 0},
            ]
        )
        await self.limit("", change)

    async def pause(self) -> None:
        """The topic or a subscription stands still, for a while or until it is resumed."""
        name = self.rng.choice(["", *sorted(self.model.claims)])
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
