"""Steps of consumers: they acknowledge and return messages, and extend ack waits."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import escapement
from simulation.exact.arrival import back_off_ms
from simulation.exact.model import NO_ACK_WAIT
from simulation.exact.workload import TOPIC, Workload


class Consuming(Workload):
    """Steps in which consumers acknowledge, return or keep messages."""

    async def consume(self) -> None:
        # Receive from every inbox first. After an ack timeout, a message that one consumer
        # acknowledges may already have been redelivered to another.
        tables = [(name, inbox, await received(inbox)) for name, inbox, _ in self.inboxes]
        await self.catch_up()
        for name, inbox, messages in tables:
            expectation = self.model.expectations[name]
            kept = [m.offset for m in messages if self.rng.random() < 0.6]
            if kept:
                unsure = set(kept) - expectation.maybe_done
                expectation.maybe_done |= unsure
                await inbox.ack(kept, durable=True)
                expectation.maybe_done -= unsure
                expectation.acknowledge(kept, self.moment())
        await self.catch_up()
        for name, inbox, messages in tables:
            rest = [m for m in messages if m.offset not in self.model.expectations[name].acked]
            given = [m for m in rest if self.rng.random() < 0.5]
            if given:
                await self.return_some(name, inbox, given)
            kept = [m.offset for m in rest if m not in given]
            if kept and name != NO_ACK_WAIT and self.rng.random() < 0.5:
                await self.extend(name, inbox, kept)

    async def return_some(
        self, name: str, inbox: escapement.Inbox, messages: list[escapement.Message]
    ) -> None:
        delay = self.rng.choice(
            [None, timedelta(0), timedelta(milliseconds=256), *[timedelta(seconds=90)] * 2]
        )
        is_tried = self.rng.choice([True, True, False])
        await self.return_messages(name, inbox, [m.offset for m in messages], delay, is_tried)

    async def return_messages(
        self,
        name: str,
        inbox: escapement.Inbox,
        offsets: list[int],
        delay: timedelta | None,
        is_tried: bool = True,
    ) -> None:
        """Return messages as tried (nack) or untried (release)."""
        at_once = set()
        expectation, now_ms = self.model.expectations[name], self.now_ms
        for offset in offsets:
            delivery = expectation.in_flight.pop(offset, None)
            if delivery is None or delivery.inbox != inbox._id or delivery.until_ms <= now_ms:
                continue
            if self.now_ms < self.model.high_ms or self.model.policies[name] is None:
                continue
            until_ms = now_ms + (0 if delay is None else delay // timedelta(milliseconds=1))
            if delay is None and is_tried and name != NO_ACK_WAIT:
                until_ms += back_off_ms(delivery.attempt, self.model.policies[name] or {})
            most = self.model.policy(name, "max_deliveries")
            if is_tried and most and delivery.attempt >= most:
                continue  # it is dead-lettered
            expectation.retries[offset] = replace(delivery, until_ms=until_ms)
            if until_ms <= now_ms:
                at_once.add(offset)
        back = inbox.nack if is_tried else inbox.release
        await back([escapement.MessageId(TOPIC, offset) for offset in offsets], delay)
        await self.catch_up()
        expectation = self.model.expectations[name]
        if expectation.in_log_order:
            expectation.returned |= at_once - expectation.in_flight.keys()

    async def extend(self, name: str, inbox: escapement.Inbox, offsets: list[int]) -> None:
        until_ms = self.now_ms + 100_000
        found = await inbox.extend(offsets, timedelta(seconds=100))
        assert found <= len(offsets)
        if found == len(offsets):
            for offset in offsets:
                delivery = self.model.expectations[name].in_flight.get(offset)
                if delivery is not None and delivery.inbox == inbox._id:
                    delivery.until_ms = max(delivery.until_ms, until_ms)

    async def acknowledge_all(self, name: str, inbox: escapement.Inbox) -> None:
        """Acknowledge all messages of an inbox."""
        offsets = [message.offset for message in await received(inbox)]
        expectation = self.model.expectations[name]
        expectation.maybe_done |= (unsure := set(offsets) - expectation.maybe_done)
        await inbox.ack(offsets, durable=True)
        expectation.maybe_done -= unsure
        expectation.acknowledge(offsets, self.moment())


async def received(inbox: escapement.Inbox) -> list[escapement.Message]:
    """Return the messages of an inbox without waiting, because time may stand still."""
    found = []
    while (message := await inbox.receive(0)) is not None:
        found.append(message)
    return found
