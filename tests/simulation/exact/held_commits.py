"""A checkpoint that the broker writes while a commit is held back, and a crash before that commit.

The checkpoint must not make any part of the held commit durable. An acknowledgement may carry a
dead letter: that of a message whose last attempt failed. So before half of these checkpoints some
messages are in flight for their last attempt, and then fail.
"""

from __future__ import annotations

from datetime import timedelta

import trio

import escapement
from simulation.exact.consuming import received
from simulation.exact.model import WITH_DEAD_LETTERS
from simulation.exact.subscribers import Subscribers
from simulation.exact.traffic import Traffic
from support.faults.held_calls import COMMIT, Held

# Steps that finish messages of a subscription, or publish.
SETTLING = ["fail", "fail", "fail", "consume", "consume", "cancel", "redrive", "publish"]


class HeldCommits(Subscribers, Traffic):
    """A step that writes a checkpoint while a commit is held back."""

    held: Held  # holds back commits of the broker

    async def checkpoint_before_commit(self) -> None:
        name = self.rng.choice(SETTLING)
        if name == "fail":
            await self.prepare_last_attempts()
        async with trio.open_nursery() as nursery:
            with self.held.hold(COMMIT):
                nursery.start_soon(getattr(self, name))
                if self.rng.random() < 0.5:
                    await self.world.clock.settle()
                else:
                    for _ in range(self.rng.randrange(10, 200)):
                        await trio.lowlevel.checkpoint()
                await self.world.checkpoint()
                self.engine.cut()
            nursery.cancel_scope.cancel()
        for expectation in self.model.expectations.values():
            # A checkpoint does not store the last attempt of acknowledged messages.
            for offset in expectation.in_flight.keys() & expectation.maybe_done:
                expectation.in_flight[offset].attempt -= 1
        await self.kill()
        await self.recover()

    async def prepare_last_attempts(self) -> None:
        """Deliver messages of subscriptions with dead letters for their last attempt.

        Other messages are dead-lettered before, because the first dead letter of a subscription
        creates its topic.
        """
        if not self._with_dead_letters():
            await self.patiently(lambda: self.subscribe(self.rng.choice(WITH_DEAD_LETTERS)))
        await self.patiently(lambda: self.publish([0]))
        await self.settle()
        for tries in range(8):
            last = [
                name
                for name, _ in self._with_dead_letters()
                for delivery in self.model.expectations[name].in_flight.values()
                if delivery.attempt >= self.model.policy(name, "max_deliveries")
            ]
            if tries >= 3 and last:
                return
            if tries == 2:
                await self.patiently(lambda: self.publish([0]))
            await self.fail()
            await self.settle()

    async def fail(self) -> None:
        """Nack all messages in flight of subscriptions with dead letters."""
        for _, inbox in self._with_dead_letters():
            await received(inbox)  # makes room for new deliveries and redeliveries
        await self.catch_up()
        for name, inbox in self._with_dead_letters():
            expectation = self.model.expectations[name]
            offsets = sorted(
                o for o, delivery in expectation.in_flight.items() if delivery.inbox == inbox._id
            )
            if offsets:
                await self.return_messages(name, inbox, offsets, timedelta(0))

    def _with_dead_letters(self) -> list[tuple[str, escapement.Inbox]]:
        return [(name, inbox) for name, inbox, _ in self.inboxes if name in WITH_DEAD_LETTERS]
