"""The end of a workload: without limits, each subscription gets every message it must get."""

from __future__ import annotations

import escapement
from simulation.exact.model import LATE_MS, NO_QUOTA, Expectation
from simulation.exact.workload import TOPIC, Workload


class Ending(Workload):
    """The end of a workload."""

    async def drain(self) -> None:
        """Lift all limits, and check that each subscription gets all messages it must get."""
        await self.close()
        await self.open()
        await self.settle()
        await self.lift_limits()
        for name, expectation in self.model.expectations.items():
            await self._drain_one(name, expectation)
        stats = await self.broker.admin("topics.stats", topic=TOPIC)
        assert stats["next_offset"] == self.model.end
        self.model.check_end()

    async def lift_limits(self) -> None:
        """Clear all policies except order, retries and the dead-letter bound."""
        names = {"topic": TOPIC}
        nothing = dict.fromkeys(["paused_until_ms", "ttl_ms", "quota_messages", "quota_bytes"])
        await self.broker.admin("topics.update", **names, policy=nothing)
        self.model.policies[""] = {}
        nothing = dict.fromkeys(["total_quota_messages", "quota_action", "quota_counts"])
        await self.broker.admin("namespaces.update", namespace="t/n", policy=nothing)
        self.model.total = NO_QUOTA
        nothing = dict.fromkeys(["paused_until_ms", "max_rate", "max_in_flight", "max_backoff_ms"])
        for name in self.model.expectations:
            names["subscription"] = name
            await self.broker.admin("subscriptions.update", **names, policy=nothing)
            left = ("order", "on_retry", "max_deliveries")
            self.model.policies[name] = {n: self.model.policy(name, n, None) for n in left}

    async def _drain_one(self, name: str, expectation: Expectation) -> None:
        inbox = await self.join(name, permits=50)
        due_ms = {self.model.due_ms(expectation, offset) for offset in self.model.open(expectation)}
        # A full ready queue is refilled every second, so receive messages soon after they are due.
        for at_ms in sorted(due_ms):
            await self.world.clock.advance(ms=max(at_ms + LATE_MS - self.now_ms, 0))
            await self._take_all(inbox, expectation)
        for _ in range(3):
            await self.world.clock.advance(days=2)
            await self._take_all(inbox, expectation)
        await self.settle()
        await self.read_dead_letters(name)
        wanted = self.model.wanted(expectation)
        done = expectation.done()
        # The index may have former due times of messages that the log has deleted. A message that
        # was dropped or dead-lettered undelivered may have been cancelled for others since.
        known = done - expectation.optional - (expectation.cancelled - expectation.acked.keys())
        known = {offset for offset in known if self.model.stored[offset] is not None}
        assert known <= wanted
        missing = wanted - expectation.optional - expectation.maybe_done - done
        assert not missing, f"{name}: lost {sorted(missing)}"

    async def _take_all(self, inbox: escapement.Inbox, expectation: Expectation) -> None:
        while messages := await escapement.testing.arrived(inbox):
            self.check()
            offsets = [message.offset for message in messages]
            await inbox.ack(offsets, durable=True)
            expectation.acknowledge(offsets, self.moment())
