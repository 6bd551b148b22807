"""Steps that set quotas, and the check of drop-oldest, for the topic and its namespace (P10).

Only the broker knows which messages it dropped. So the check reads the cursors of the broker
between steps: messages that are done there and that no client acknowledged were dropped. They must
be the oldest undelivered messages, a quota must have been in force, the broker must not drop too
many, and it must not drop too few for long.
"""

from __future__ import annotations

from contextlib import suppress

import escapement
from simulation.exact.model import LATE_MS, NO_QUOTA, WITH_DEAD_LETTERS, Expectation, Quota
from simulation.exact.workload import TOPIC, Workload

NEIGHBOUR = "t/n/y"
TOTAL = 12
COUNTS = ["due", "due", "all"]


class Quotas(Workload):
    """Steps that change the namespace quota, and a second topic that counts towards it."""

    async def total(self) -> None:
        """Change the quota of the namespace."""
        action = self.rng.choice(["drop_oldest", "drop_oldest", "refuse"])
        total, counts = self.rng.choice([0, TOTAL, TOTAL]), self.rng.choice(COUNTS)
        policy = {
            "total_quota_messages": total, "quota_action": action, "quota_counts": counts
        }  # fmt: skip
        drops = action == "drop_oldest"
        quota = Quota(total, total, counts == "all", drops) if total else NO_QUOTA
        self.model.total = None

        async def ask() -> None:
            await self.broker.admin("namespaces.update", namespace="t/n", policy=policy)
            self.model.total = quota

        await self.ask_again_after_crash(ask)

    async def neighbour(self) -> None:
        """Publish to the second topic, or acknowledge all of its messages."""
        names = {"topic": NEIGHBOUR, "subscription": "y"}
        if not await self.neighbour_backlog():
            with suppress(escapement.AlreadyExists):
                await self.broker.admin("subscriptions.create", **names, kind="shared")
        if self.rng.random() < 0.3:
            async with self.broker.consumer(NEIGHBOUR, "y") as inbox:
                offsets = [m.offset for m in await escapement.testing.arrived(inbox)]
                await inbox.ack(offsets, durable=True)
            return
        producer = await self.broker.producer(NEIGHBOUR, linger="0ms", send_timeout="3s")
        with suppress(escapement.BacklogFull):
            await producer.send_many([b"y"] * self.rng.choice([2, 15]))
        await producer.aclose()

    async def neighbour_backlog(self) -> int:
        """Return the backlog of the second topic."""
        try:
            rows = await self.broker.admin("subscriptions.list", topic=NEIGHBOUR)
        except escapement.NotFound:
            return 0
        return sum(int(row["unacknowledged"]) for row in rows)

    # -- between the steps -----------------------------------------------------------

    async def see(self) -> None:
        """Find messages that were dropped or dead-lettered lately, and check the quotas."""
        model = self.model
        before, now = model.quotas, model.quotas_now()
        steady = before == now and None not in now and self.now_ms >= model.high_ms
        any_dropped = False
        for name, expectation in model.expectations.items():
            dropped = await self._dropped(name, expectation)
            assert any(quota != NO_QUOTA for quota in before + now) or not dropped, (
                f"{sorted(dropped)} of {name} are done without an acknowledgement"
            )
            self._check_oldest(expectation, dropped)
            expectation.dropped |= dropped
            any_dropped |= bool(dropped)
            if steady and now[0] and now[0] != NO_QUOTA == now[1] and name not in WITH_DEAD_LETTERS:
                self._check_amount(expectation, bool(dropped), now[0])
        if steady and now[1] and now[1] != NO_QUOTA:
            await self._check_sum(any_dropped, now[1])
        model.quotas, model.quiet_since_ms = now, self.now_ms
        for expectation in model.expectations.values():
            open_ = model.open(expectation) - expectation.delivered.keys()
            expectation.at_rest = {
                o for o in open_ if model.counts_since_ms(expectation, o) + LATE_MS <= self.now_ms
            }
            expectation.changes = self._changes(expectation)
        await self.read_all_dead_letters()

    async def _dropped(self, name: str, expectation: Expectation) -> set[int]:
        subscription = next(
            found
            for topic in self.world.server.registry.active.values()
            if topic.name.full == TOPIC and (found := topic.subscription(name)) is not None
        )
        acked = set(subscription.acked.to_array(0, self.model.end).tolist())
        acked -= set(subscription.acked.undurable.to_array(0, self.model.end).tolist())
        found = acked & self.model.open(expectation)
        if found:
            await self.read_dead_letters(name)
        return found - expectation.done()

    def _check_oldest(self, expectation: Expectation, dropped: set[int]) -> None:
        """Check that no message that stayed was older than a dropped one."""
        model = self.model
        if not dropped or self.now_ms < model.high_ms:
            return
        stayed = (
            expectation.at_rest & model.open(expectation) - dropped - expectation.delivered.keys()
        )
        if not expectation.in_log_order:
            stayed = {o for o in stayed if o >= expectation.ordered_from}
        since_ms = model.quiet_since_ms
        # The subscription may still have the earlier due time of these.
        unsure = expectation.maybe_kept_due_ms.keys()
        oldest = {o for o in dropped - unsure if self._unmoved(o, since_ms)}
        stayed = {o for o in stayed - unsure if self._unmoved(o, since_ms)}
        last, first = (
            [(0 if expectation.in_log_order else model.due_ms(expectation, o), o) for o in some]
            for some in (oldest, stayed)
        )
        assert not last or not first or max(last) < min(first), (
            f"{max(last)} was dropped and {min(first)} was not"
        )

    def _unmoved(self, offset: int, since_ms: int) -> bool:
        message = self.model.stored[offset]
        return message is not None and message.since_ms <= since_ms

    def _changes(self, expectation: Expectation) -> int:
        changed = len(self.model.cancelled) + self.model.reschedules
        return (
            len(expectation.acked)
            + len(expectation.maybe_done)
            + len(expectation.dead_lettered)
            + changed
        )

    def _check_amount(self, expectation: Expectation, any_dropped: bool, quota: Quota) -> None:
        least_left, most_left, at_rest = self._left(expectation, quota)
        if any_dropped and self._changes(expectation) == expectation.changes:
            assert most_left >= quota.least, f"only {most_left} were left"
        if self._was_quiet():
            assert least_left <= quota.full or not at_rest, f"{least_left} were left"

    async def _check_sum(self, any_dropped: bool, quota: Quota) -> None:
        model, others, most = self.model, await self.neighbour_backlog(), quota.least
        left = [self._left(expectation, quota) for expectation in model.expectations.values()]
        settled = all(self._changes(c) == c.changes for c in model.expectations.values())
        most_left = max((found[1] for found in left), default=0) + others
        if any_dropped and settled and model.quotas_now()[0] == NO_QUOTA:
            assert most_left >= most, f"only {most_left} were left in the namespace"
        # Each of two topics may keep half, so messages in flight do not delay a drop.
        in_flight = [len(model.open(c) & c.delivered.keys()) for c in model.expectations.values()]
        stays = max(in_flight, default=0) + (
            len(model.ahead(self.now_ms)) if quota.counts_all else 0
        )
        if self._was_quiet() and stays <= most // 2:
            least_left = max((found[0] for found in left), default=0) + others
            assert least_left <= most, f"{least_left} were left in the namespace"

    def _was_quiet(self) -> bool:
        return self.calm and self.now_ms - self.model.quiet_since_ms > 2 * LATE_MS

    def _left(self, expectation: Expectation, quota: Quota) -> tuple[int, int, int]:
        """Return the least and the most possible backlog, and the number of droppable messages."""
        model, now_ms = self.model, self.now_ms
        known_ms = now_ms - LATE_MS
        certain = {
            o for o in model.open(expectation) if model.counts_since_ms(expectation, o) <= known_ms
        }
        perhaps = {
            o
            for o in model.wanted(expectation) - expectation.done()
            if expectation.in_log_order or model.due_ms(expectation, o) <= now_ms
        }
        in_flight = {
            o for o, delivery in expectation.in_flight.items() if delivery.until_ms > known_ms
        }
        if expectation.left_ms > known_ms:  # a consumer may have had them until then
            in_flight |= expectation.delivered.keys()
        least, most, may_go = len(certain), len(perhaps), len(certain - in_flight)
        if not quota.counts_all:
            return least, most, may_go
        ahead = len(model.ahead(known_ms))
        # Delayed messages that the subscription must not get counted until they were due, which may
        # be after a drop.
        was_ahead = model.ahead(now_ms, max(now_ms - model.quiet_since_ms, 0))
        if expectation.in_log_order:  # its messages include delayed ones
            beside = max(least - len(model.ahead(now_ms, LATE_MS)), 0)
            return max(least, ahead), max(most, len(was_ahead)), min(may_go, beside)
        return least + ahead, len(perhaps | was_ahead), may_go
