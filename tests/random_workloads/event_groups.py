"""Steps that close and delete event groups, and the check of their follow-ups (Q10)."""

from __future__ import annotations

from contextlib import suppress

import escapement
from random_workloads.model import Completion, Expectation, Group
from random_workloads.workload import TOPIC, Workload

# Its own namespace keeps it out of the quotas. A subscription keeps its log readable.
AFTER = "t/m/after"
# A follow-up that is overdue by this time and this number of steps is lost.
_TIMEOUT_MS, _TIMEOUT_STEPS = 61_000, 3


class EventGroups(Workload):
    """Steps that close and delete groups. Follow-ups are checked between steps."""

    async def begin(self) -> None:
        await super().begin()
        names = {"topic": AFTER, "subscription": "kept"}
        await self.broker.admin("subscriptions.create", **names)
        policy = {"retention_ms": 0}
        await self.broker.admin("namespaces.update", namespace="t/m", policy=policy)

    async def close_group(self) -> None:
        names = sorted(self.model.expectations)
        if not names:
            return
        joined = [name for name, one in self.model.groups.items() if one.members]
        name = self.rng.choice(sorted(joined) * 4 + ["g", "h"])
        subscription = self.rng.choice(names)
        group = self.model.groups.setdefault(name, Group())
        known = [one for one in group.completions if one.subscription == subscription]
        completion = known[0] if known else Completion(subscription, self.model.next_follow_up())

        async def ask() -> None:
            then = escapement.FollowUp(b"%d" % completion.number, AFTER)
            close = self.broker.groups.close
            await self.retry(lambda: close(TOPIC, name, subscription, then))
            if not known:
                group.completions.append(completion)

        await self.ask_again_after_crash(ask)

    async def delete_group(self) -> None:
        if not self.model.groups:
            return
        name = self.rng.choice(sorted(self.model.groups))
        group = self.model.groups[name]
        self.model.deleted_completions += group.completions

        async def delete() -> None:
            # The group may have no messages, or it was deleted before the broker crashed.
            with suppress(escapement.NotFound):
                await self.broker.groups.delete(TOPIC, name)

        async def ask() -> None:
            await self.retry(delete)
            del self.model.groups[name]

        await self.ask_again_after_crash(ask)

    async def see_follow_ups(self) -> None:
        """Check that each completed group, and no other, has published its follow-up once."""
        self.model.fired += await self.retry(self._new_follow_ups)
        fired = self.model.fired
        assert len(set(fired)) == len(fired), "a group has fired twice"
        await self.read_all_dead_letters()  # dead-lettered messages are done
        completions = [one for group in self.model.groups.values() for one in group.completions]
        known = {one.number for one in completions + self.model.deleted_completions}
        assert known >= set(fired), "a group has fired that was not closed"
        for group in self.model.groups.values():
            for completion in group.completions:
                self._check_completion(group, completion)

    async def _new_follow_ups(self) -> list[int]:
        try:
            start = len(self.model.fired)
            return [int(m.value) async for page in self.broker.read(AFTER, start) for m in page]
        except escapement.NotFound:
            return []

    def _check_completion(self, group: Group, completion: Completion) -> None:
        expectation = self.model.expectations[completion.subscription]
        if completion.number in self.model.fired:
            left = self._undone(group, expectation, expectation.maybe_done | expectation.optional)
            assert completion.has_fired or not left, (
                f"a group has fired with {sorted(left)} pending"
            )
            completion.has_fired = True
        elif self._undone(group, expectation, set()) or self.now_ms < self.model.high_ms:
            completion.done_ms, completion.steps = None, 0
        else:
            completion.done_ms = self.now_ms if completion.done_ms is None else completion.done_ms
            completion.steps += 1
            late = self.now_ms - completion.done_ms > _TIMEOUT_MS
            assert not late or completion.steps <= _TIMEOUT_STEPS, "a follow-up is lost"

    def _undone(self, group: Group, expectation: Expectation, others: set[int]) -> set[int]:
        """Return the pending messages of a group without ``others``."""
        return (group.members & self.model.wanted(expectation)) - expectation.done() - others
