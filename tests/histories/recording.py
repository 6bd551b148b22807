"""Calls of clients that note their facts in the history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

import escapement
from escapement import AmendStatus, MessageId, Outcomes
from escapement.names import TopicName
from histories.history import (
    Amendment,
    Arrival,
    Consumer,
    History,
    Message,
    Way,
    number_of,
    payload_of,
)
from support.tapped_inbox import Delivered, tap


async def send(
    history: History,
    producer: escapement.Producer,
    batch: Sequence[tuple[Message, int]],
    *,
    sequence: int | None = None,
    dedup: Sequence[str | None] | None = None,
    **columns: Any,
) -> escapement.Receipts:
    """Publish messages with their delays in milliseconds, and note the receipts.

    Args:
      columns: further arguments of ``Producer.send_many``.
    """
    receipts = await producer.send_many(
        [payload_of(message) for message, _ in batch],
        delay=np.array([delay_ms for _, delay_ms in batch]),
        keys=[message.key or None for message, _ in batch],
        sequence=sequence,
        dedup=dedup,
        **columns,
    )
    for (message, _), receipt in zip(batch, receipts, strict=True):
        if not receipt.kept:  # else the receipt names another message
            history.confirm(message, receipt.id.offset if receipt.id else -1)
    return receipts


async def amend(
    history: History,
    client: escapement.Broker,
    message: Message,
    due_ms: int | None,
    call: Callable[[list[MessageId]], Awaitable[Outcomes]],
    kind: str,
) -> None:
    """Cancel or reschedule one message.

    Args:
      due_ms: the due time that is asked for, or an earlier time; None: a cancel.
      call: the call of the client.
      kind: counts how often it took effect.
    """
    full = TopicName.parse(message.topic).full
    line = await client._lines.of_topic(full)
    link = line.link
    amendment = Amendment(due_ms, history.now_ms())
    message.amendments.append(amendment)
    (outcome,) = await call([MessageId(full, message.offset)])
    amendment.once = link is not None and line.link is link
    amendment.answered_ms, amendment.status = history.now_ms(), outcome.status
    cancelled = due_ms is None and outcome.status is AmendStatus.CANCELLED
    amendment.done = outcome.status is AmendStatus.DONE or cancelled
    amendment.handed = frozenset(outcome.handed)
    history.counts[kind] += amendment.done


async def list_dead_letters(
    history: History, client: escapement.Broker, topic: str, subscription: str, **more: str
) -> dict[int, int]:
    """Note all dead letters of a subscription. Return the due time of each, by its offset."""
    rows = await client.admin(
        "dlq.list", topic=topic, subscription=subscription, count=1_000, **more
    )
    assert len(rows) < 1_000, "more dead letters than one listing shows"
    listed = {row["offset"]: (number_of(row["payload"]), row["original_offset"]) for row in rows}
    history.list_dead_letters(subscription, listed)
    history.dead_letters[subscription].reasons |= {
        row["offset"]: (row.get("reason", ""), row.get("detail", "")) for row in rows
    }
    return {row["offset"]: row["due_at_ms"] for row in rows}


async def redrive(
    history: History,
    client: escapement.Broker,
    topic: str,
    subscription: str,
    offsets: list[int],
    **more: str,
) -> None:
    """Redrive the dead letters with these offsets."""
    history.dead_letters[subscription].asked |= set(offsets)
    names = {"topic": topic, "subscription": subscription, **more}
    await client.admin("dlq.redrive", **names, offsets=offsets)
    history.counts["redriven"] += len(offsets)


class _KnownByItself:
    """A connection of which a client knows only that it is another one than before."""

    ended_s: float | None = None  # it is not known when it ended


def connection_of() -> Callable[[Any], Way]:
    """Return a function that tells the connections of one inbox apart by their streams."""
    latest: list[tuple[Any, Way]] = []

    def way_of(stream: Any) -> Way:
        if not latest or latest[0][0] is not stream:
            latest[:] = [(stream, Way(_KnownByItself()))]
        return latest[0][1]

    return way_of


class RecordedInbox:
    """An inbox that notes each delivery when it arrives, and what the application does with it.

    Args:
      way_of: tells from the stream of a connection how the message came that was read last.
    """

    def __init__(
        self,
        history: History,
        subscription: str,
        inbox: escapement.Inbox,
        way_of: Callable[[Any], Way],
    ) -> None:
        self._history = history
        self.consumer = Consumer(subscription)
        self._inbox = inbox
        self._way_of = way_of
        tap(inbox, self._arrive)

    def take(self, batch: escapement.Batch) -> None:
        """Note messages that the application takes, and that came before this object existed.

        The first ones may come together with the answer that the consumer is open.
        """
        missed = [one for one in batch if one.offset not in self.consumer.latest]
        if missed:
            self._arrive(
                [
                    Delivered(
                        one.offset,
                        one.due_ms,
                        one.attempt,
                        one.redelivered,
                        one.payload,
                        one.key,
                        one.priority,
                    )
                    for one in missed
                ]
            )

    async def ack(self, offsets: list[int]) -> None:
        """Acknowledge messages, without an answer."""
        self._note_acks(offsets)
        await self._inbox.ack(offsets)

    async def ack_durably(self, offsets: list[int]) -> None:
        """Acknowledge messages, and wait until that is durable."""
        self._note_acks(offsets)
        await self._inbox.ack(offsets, durable=True)
        now_s = self._history.now_s()
        for offset in offsets:
            self._history.acked_s.setdefault((self.consumer.subscription, offset), now_s)

    async def nack(self, offsets: list[int], delay: timedelta | None = None) -> None:
        self._note_returns(offsets)
        await self._inbox.nack(offsets, delay)

    async def release(self, offsets: list[int], delay: timedelta | None = None) -> None:
        self._note_returns(offsets)
        await self._inbox.release(offsets, delay)

    def leave(self) -> None:
        """Note that the consumer begins to leave."""
        self.consumer.left_s = self._history.now_s()

    def _note_acks(self, offsets: list[int]) -> None:
        for offset in offsets:
            self._history.ack_sent.add((self.consumer.subscription, offset))
            self.consumer.latest[offset].acked_s = self._history.now_s()

    def _note_returns(self, offsets: list[int]) -> None:
        for offset in offsets:
            self.consumer.latest[offset].returned_s = self._history.now_s()

    def _arrive(self, delivered: list[Delivered]) -> None:
        link = self._inbox._line.link
        assert link is not None
        way = self._way_of(link._stream)
        for one in delivered:
            arrival = Arrival(
                self.consumer.subscription,
                number_of(one.payload),
                one.offset,
                one.due_ms,
                one.key or "",
                one.redelivered or one.attempt > 1,
                self._history.now_s(),
                self._history.now_ms(),
                way,
                self.consumer,
            )
            self._history.arrive(arrival)
