"""The end of a life: with all limits lifted, each subscription gets every message it must get."""

from __future__ import annotations

import escapement
from lives.life import TOPIC, Life
from lives.model import LATE_MS, NO_QUOTA, Claim


class Ending(Life):
    """See the module's docstring."""

    async def drain(self) -> None:
        """With all limits lifted everything is delivered, without further traffic."""
        await self.close()
        await self.open()
        await self.settle()
        self.model.check_schedule()
        if self.model.schedule_ms is not None:
            await self.broker.schedules.delete("t/n/s")
        await self.lift()
        for name, claim in self.model.claims.items():
            await self._drain_one(name, claim)
        stats = await self.broker.admin("topics.stats", topic=TOPIC)
        assert stats["next_offset"] == self.model.end
        self.model.check_end()
        for group in self.model.groups.values():
            for closing in group.closings:
                # What was over before it began it may never get.
                over = group.members & self.model.claims[closing.subscription].lucky
                assert over or closing.number in self.model.fired, f"{closing} does not fire"

    async def lift(self) -> None:
        """No policy says anything any more, but that the mortal one's messages die."""
        names = {"topic": TOPIC}
        nothing = dict.fromkeys(["paused_until_ms", "ttl_ms", "quota_messages", "quota_bytes"])
        await self.broker.admin("topics.update", **names, policy=nothing)
        self.model.policies[""] = {}
        nothing = dict.fromkeys(["total_quota_messages", "quota_action", "quota_counts"])
        await self.broker.admin("namespaces.update", namespace="t/n", policy=nothing)
        self.model.total = NO_QUOTA
        nothing = dict.fromkeys(["paused_until_ms", "max_rate", "max_in_flight", "max_backoff_ms"])
        for name in self.model.claims:
            names["subscription"] = name
            await self.broker.admin("subscriptions.update", **names, policy=nothing)
            left = ("order", "on_retry", "max_deliveries")
            self.model.policies[name] = {n: self.model.policy(name, n, None) for n in left}

    async def _drain_one(self, name: str, claim: Claim) -> None:
        inbox = await self.join(name, permits=50)
        due_ms = {self.model.due_ms(claim, offset) for offset in self.model.open(claim)}
        # What falls due is taken before long: a full ready is looked at every second.
        for at_ms in sorted(due_ms):
            await self.world.clock.advance(ms=max(at_ms + LATE_MS - self.now_ms, 0))
            await self._take_all(inbox, claim)
        for _ in range(3):
            await self.world.clock.advance(days=2)
            await self._take_all(inbox, claim)
        await self.settle()
        await self.letters(name)
        wanted = self.model.wanted(claim)
        done = claim.done()
        # Of what is gone from the log any of its keys may have been left in the index, and what
        # was dropped or died here, in nobody's hands, may have been cancelled for others since.
        known = done - claim.lucky - (claim.spared - claim.acked.keys())
        known = {offset for offset in known if self.model.stored[offset] is not None}
        assert known <= wanted
        missing = wanted - claim.lucky - claim.perhaps - done
        assert not missing, f"{name}: lost {sorted(missing)}"

    async def _take_all(self, inbox: escapement.Inbox, claim: Claim) -> None:
        while messages := await escapement.testing.arrived(inbox):
            self.check()
            offsets = [message.offset for message in messages]
            await inbox.ack(offsets, durable=True)
            claim.acknowledge(offsets, self.moment())
