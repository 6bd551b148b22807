"""Numbered messages on topic t, and their deliveries."""

from __future__ import annotations

from typing import Any

import escapement
from escapement import AmendStatus
from escapement.testing import arrived


async def publish(
    broker: escapement.Broker, count: int, *subscriptions: str, keyed: bool = False, **times: Any
) -> escapement.Receipts:
    """Create shared subscriptions, publish messages and return their receipts.

    With ``keyed``, each message has its own key. Use that for the first call on a topic only,
    because numbers must equal offsets.
    """
    for name in subscriptions:
        await broker.admin("subscriptions.create", topic="t", subscription=name)
    keys = [f"k{n}" for n in range(count)] if keyed else None
    async with await broker.producer("t") as producer:
        return await producer.send_many([b"%d" % n for n in range(count)], keys=keys, **times)


async def offsets(inbox: escapement.Inbox) -> list[int]:
    """Return the offsets delivered now, and check the payloads of messages with keys."""
    got = await arrived(inbox)
    keyed = [message for message in got if message.key is not None]
    assert all(m.payload == b"%d" % m.offset and m.key == f"k{m.offset}" for m in keyed)
    return [message.offset for message in got]


async def everything(broker: escapement.Broker, subscription: str, **options: Any) -> list[int]:
    """Acknowledge all messages that a subscription gets now, and return their offsets."""
    found: list[int] = []
    async with broker.consumer("t", subscription, **options) as inbox:
        while got := await offsets(inbox):
            found += got
            await inbox.ack(got, durable=True)
    return found


def statuses(outcomes: escapement.Outcomes) -> list[AmendStatus]:
    """Return the status of each outcome."""
    return [outcome.status for outcome in outcomes]
