"""Steps that publish, cancel, reschedule and redrive messages.

A step notes its possible outcomes before its request, so the broker may crash at any moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import trio

import escapement
from escapement.clock import moment
from escapement.spread import places_ms, seeds
from simulation.exact.consuming import Consuming
from simulation.exact.model import (
    DEDUP_WINDOW_MS,
    LATE_MS,
    MESSAGE_BYTES,
    WITH_DEAD_LETTERS,
    Sent,
)
from simulation.exact.workload import TOPIC
from support.storage.inbox_entries import inbox_entry, post

DELAYS_S = [0, 0, 0.03, 0.456, 2.6, 5, 60, 300, 4000, 90_000]
# The longest time that the step ``race`` takes.
_RACE_MS = 4_000
KEYS = [None, None, "p", "q", "r", "s"]


class Traffic(Consuming):
    """Steps that publish and change messages."""

    async def publish(
        self, delays_s: Sequence[float] = DELAYS_S, keys: Sequence[str | None] = KEYS
    ) -> None:
        model, count = self.model, self.rng.choice([1, 1, 3, 20])
        producer = self.rng.choice(self.producers)
        values = self.values(count)
        for value in values:
            delay_ms = round(self.rng.choice(delays_s) * 1000)
            dedup = self.rng.choice([None, None, None, "k", "l", "m", "n"])
            model.sent[value] = Sent(
                delay_ms,
                key=self.rng.choice(keys),
                priority=self.rng.choice([50, 50, 50, 0, 200]),
                dedup=dedup,
                producer=producer.name,
            )
        sent, began_ms = [model.sent[value] for value in values], self.now_ms
        full = self.is_full()
        try:
            receipts = await producer.send_many(
                values,
                delay=[timedelta(milliseconds=one.delay_ms) for one in sent],
                keys=[one.key for one in sent],
                priorities=[one.priority for one in sent],
                dedup=[one.dedup for one in sent],
            )
        except escapement.EscapementError as error:
            if not error.retryable:
                raise
            # The publish rate may still hold back messages that the producer gave up. ``catch_up``
            # waits behind them.
            await self.catch_up()
            if isinstance(error, escapement.BacklogFull) and "all topics" not in str(error):
                assert self.may_be_full(), "the publish was refused, and the quota is not met"
            return
        await self.catch_up()
        for value, one, receipt in zip(values, sent, receipts, strict=True):
            offset = receipt.id.offset
            if receipt.duplicate and not one.copies:
                assert one.dedup is not None
                kept, first_ms = model.keys[one.dedup]
                assert kept == offset
                assert first_ms + DEDUP_WINDOW_MS > began_ms
                one.most = 0
            else:
                one.least = 1
                message = model.stored[offset]
                assert message is None or message.value == value
                assert not full or message is None or message.published_ms > began_ms, "full"

    def values(self, count: int) -> list[bytes]:
        """Return new payloads."""
        first = len(self.model.sent)
        return [b"%0*d" % (MESSAGE_BYTES, first + row) for row in range(count)]

    def is_full(self) -> bool:
        """Return whether the backlog has certainly reached its quota.

        The broker only estimates messages in segments. So the result is False if there are any, or
        if the index may lack messages.
        """
        if self.filling:
            return False
        model, quota = self.model, self.model.quota()
        if quota is None or not quota.full or self.world.server.index.segment_count:
            return False
        if self.now_ms < model.high_ms:
            return False
        waiting_ms = self.now_ms - LATE_MS - 1_000
        if quota.drops:  # due messages can be dropped
            return quota.counts_all and len(model.ahead(waiting_ms)) >= quota.full
        return model.backlog(waiting_ms, quota.counts_all) >= quota.full

    def may_be_full(self) -> bool:
        """Return whether the quota may be met. Done messages must not count."""
        model, quota = self.model, self.model.quota()
        if quota is None:
            return True
        ahead = sum(
            message is not None and message.due_ms >= self.now_ms - LATE_MS
            for message in model.stored
        )
        # Messages that were delivered before the clock was set back count, too.
        due_by_ms = max(self.now_ms, model.high_ms)
        waits = [
            sum(
                expectation.in_log_order or model.due_ms(expectation, offset) <= due_by_ms
                for offset in model.wanted(expectation) - expectation.done()
            )
            for expectation in model.expectations.values()
        ]
        most = 0 if quota.drops else max(waits, default=0)
        return most + (ahead if quota.counts_all else 0) >= quota.least > 0

    async def post(self) -> None:
        """Publish messages through the inbox."""
        entries = []
        posted: list[bytes] = []
        for number in range(self.rng.choice([1, 1, 4])):
            times = [
                self.now_ms + self.rng.choice([-1, 0, 7000, 300_000]) for _ in range(number % 2 + 1)
            ]
            values = self.values(len(times))
            entries.append(inbox_entry(TOPIC, f"{len(self.model.sent)}", *values, at_ms=times))
            for value, at_ms in zip(values, times, strict=True):
                self.model.sent[value] = Sent(at_ms=at_ms)
            posted += values
        await self.retry(lambda: post(self.world, entries))
        for value in posted:
            self.model.sent[value].least = 1

    async def reschedule(self) -> None:
        """Reschedule some messages, and sometimes one that does not exist."""
        named, delay = self.random_offsets(), self.rng.choice([0, 5, 300, 90_000])
        due_ms, spread_ms = self.now_ms + delay * 1000, self.rng.choice([0, 0, 60_000])
        spread = (spread_ms, "ms") if spread_ms else None
        await self.catch_up()

        tries, asked_ms = 0, self.now_ms

        async def request() -> Any:
            nonlocal tries, asked_ms
            tries, asked_ms = tries + 1, self.now_ms
            return await self.broker.reschedule(
                named, at=moment(due_ms), topic=TOPIC, spread=spread
            )

        async def ask() -> None:
            outcomes = await self.retry(request)
            await self.retry(self.read_log)  # messages may have been deleted meanwhile
            for outcome in {outcome.id.offset: outcome for outcome in outcomes}.values():
                seed = seeds(outcome.id.topic, np.array([outcome.id.offset]))
                at_ms = due_ms + int(places_ms(seed, spread_ms)[0])
                self.note_rescheduled(outcome, at_ms, asked_ms, repeated=tries > 1)

        await self.ask_again_after_crash(ask)

    def note_rescheduled(
        self,
        outcome: Any,
        due_ms: int,
        asked_ms: int,
        *,
        racing: bool = False,
        repeated: bool = False,
    ) -> None:
        """Check an outcome of a reschedule and note it.

        Args:
          asked_ms: when the broker got the request. In an outage its commit may take seconds.
          racing: the message may have been cancelled just before or after.
          repeated: the message may have been moved by an earlier request whose answer was lost.
        """
        model, offset = self.model, outcome.id.offset
        message = model.stored[offset] if offset < model.end else None
        if outcome.status is escapement.AmendStatus.UNKNOWN:
            assert message is None or model.is_forgotten(offset)
            return
        if message is None:
            return
        is_cancelled = outcome.status is escapement.AmendStatus.CANCELLED
        assert (offset in model.cancelled) == is_cancelled or (racing and not is_cancelled)
        if not outcome.done:
            return
        for name, expectation in model.expectations.items():
            if name in outcome.handed and not expectation.in_log_order:
                if repeated:
                    expectation.maybe_kept_due_ms.setdefault(offset, message.due_ms)
                elif offset not in expectation.maybe_kept_due_ms:
                    expectation.kept_due_ms.setdefault(offset, message.due_ms)
        model.reschedules += 1
        # A past time becomes the time of the request, or the first time of a subscription that
        # began just then.
        shared = [
            expectation
            for expectation in model.expectations.values()
            if not expectation.in_log_order
        ]
        waits = [one for one in shared if one.since_ms == asked_ms + 1]
        earliest_ms = asked_ms + any(offset < one.since_offset for one in waits)
        message.due_ms = max(due_ms, earliest_ms)
        message.first_ms = min(message.first_ms, message.due_ms)
        message.since_ms = self.now_ms

    async def cancel(self) -> None:
        """Cancel some messages, and sometimes one that does not exist."""
        await self.catch_up()
        named, end = self.random_offsets(), self.model.end

        async def ask() -> None:
            outcomes = await self.retry(lambda: self.broker.cancel(named, topic=TOPIC))
            await self.retry(self.read_log)  # an inbox entry may have been moved meanwhile
            for outcome in outcomes:
                assert (
                    outcome.id.offset >= end or outcome.status is not escapement.AmendStatus.UNKNOWN
                )
                self.note_cancelled(outcome)

        await self.ask_again_after_crash(ask)

    def note_cancelled(self, outcome: Any, *, racing: bool = False) -> None:
        """Check an outcome of a cancel and note it.

        Args:
          racing: the message may have been rescheduled just before or after.
        """
        model, offset = self.model, outcome.id.offset
        known = outcome.status is not escapement.AmendStatus.UNKNOWN
        over = outcome.status is escapement.AmendStatus.OVER
        assert offset < model.end or not known
        if known and not over and not racing and outcome.handed and not offset < model.begin:
            wanted = self.still_wanted(outcome)
            # It may have been cancelled before a crash lost the answer. The outcome of a repeated
            # cancel also names subscriptions that may have had the message.
            again = offset in model.cancelled or any(
                name in outcome.handed
                and offset not in expectation.acked
                and not expectation.is_known_delivered(offset)
                for name, expectation in model.expectations.items()
            )
            assert outcome.done == wanted or (outcome.done and again)
        for name, expectation in model.expectations.items():
            had = offset in expectation.acked or offset in expectation.recorded_attempts
            had |= offset in expectation.in_flight_at_crash
            assert name in outcome.handed or not had or offset < model.begin
            # The outcome for a deleted message does not name the subscriptions that had it.
            if outcome.done and name not in outcome.handed and offset not in expectation.done():
                expectation.cancelled.add(offset)
            elif outcome.done and not expectation.is_known_delivered(offset):
                expectation.maybe_done.add(offset)
        if outcome.done:
            model.cancelled.add(offset)
        elif over:
            assert offset < model.begin or any(
                name not in outcome.handed for name in model.expectations
            ), "not delivered, but every subscription had it"
        elif known:
            assert outcome.handed, "delivered, but no subscription had it"

    def still_wanted(self, outcome: Any) -> bool:
        """Return whether a subscription that has not had the message must get it."""
        model, offset = self.model, outcome.id.offset
        return model.stored[offset] is not None and any(
            expectation.must_get(offset, model.due_ms(expectation, offset))
            for name, expectation in model.expectations.items()
            if name not in outcome.handed
        )

    async def race(self) -> None:
        """Cancel and reschedule all messages of a key at once, while consumers acknowledge some."""
        model, key = self.model, self.rng.choice("pqrs")
        due_ms = self.now_ms + self.rng.choice([0, 5, 300]) * 1000
        # Messages that were due before the clock was set back may be deleted.
        later_ms = max(self.now_ms, model.high_ms) + _RACE_MS
        pending = {
            offset
            for offset, one in enumerate(model.stored)
            if one is not None and one.key == key and one.due_ms > later_ms
        }
        # A message that is rescheduled to now may be acknowledged before the cancel finds it.
        pending = pending - model.cancelled if due_ms > self.now_ms + _RACE_MS else set()
        cancelled: list[Any] = []
        rescheduled: list[Any] = []

        async def cancel() -> None:
            cancelled.extend(await self.broker.cancel(key=key, topic=TOPIC))

        async def reschedule() -> None:
            rescheduled.extend(
                await self.broker.reschedule(key=key, at=moment(due_ms), topic=TOPIC)
            )

        async with trio.open_nursery() as nursery:
            for ask in self.rng.sample([cancel, reschedule], 2):
                nursery.start_soon(ask)
            for name, inbox, _ in self.inboxes:
                nursery.start_soon(self.acknowledge_all, name, inbox)
        await self.retry(self.read_log)
        named = {outcome.id.offset for outcome in cancelled}
        assert pending <= named, f"{sorted(pending - named)} with this key were not found"
        for outcome in cancelled + rescheduled:
            message = model.stored[outcome.id.offset]
            assert message is None or message.key == key
        for outcome in cancelled:
            self.note_cancelled(outcome, racing=True)
        for outcome in rescheduled:
            self.note_rescheduled(outcome, due_ms, self.now_ms, racing=True)

    def random_offsets(self) -> list[int]:
        """Return random offsets, perhaps with the first one that does not exist."""
        count = self.rng.choice([1, 3, 10])
        return [self.rng.randrange(self.model.end + 1) for _ in range(count)]

    async def redrive(self) -> None:
        """Redrive or purge some dead letters."""
        name = self.rng.choice(WITH_DEAD_LETTERS)
        found = await self.read_dead_letters(name)
        dead_letter_topic = self.rng.choice(sorted(found)) if found else ""
        rows = [
            row for row in found.get(dead_letter_topic, []) if row["payload"] in self.model.sent
        ]
        rows = [row for row in rows if self.rng.random() < 0.7]
        if not rows:
            return
        names = {"topic": TOPIC, "subscription": name, "dead_letter_topic": dead_letter_topic}
        wanted = {row["offset"]: row["payload"] for row in rows}
        verb = self.rng.choice(["dlq.redrive", "dlq.redrive", "dlq.purge"])
        back = verb == "dlq.redrive"
        for value in wanted.values() if back else ():
            self.model.sent[value].most += 1

        async def see() -> None:
            left = {
                row["offset"]
                for row in (await self.read_dead_letters(name)).get(dead_letter_topic, [])
            }
            for offset, value in wanted.items() if back else ():
                if offset in left:
                    self.model.sent[value].most -= 1
                else:
                    self.model.sent[value].least += 1

        self.unanswered.append(see)
        offsets = list(wanted)
        await self.retry(lambda: self.broker.admin(verb, **names, offsets=offsets))
        self.unanswered.remove(see)
        await see()
