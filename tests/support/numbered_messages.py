"""Numbered messages on topic t, and what comes of them."""

from __future__ import annotations

from typing import Any

import escapement
from escapement import AmendStatus
from escapement.testing import arrived


async def publish(
    broker: escapement.Broker, count: int, *subscriptions: str, keyed: bool = False, **times: Any
) -> escapement.Receipts:
    """Messages for shared subscriptions that are made before.

    Each has a key of its own if ``keyed``; that is for one call on a topic, whose numbers are
    their offsets.
    """
    for name in subscriptions:
        await broker.admin("subscriptions.create", topic="t", subscription=name)
    keys = [f"k{n}" for n in range(count)] if keyed else None
    async with await broker.producer("t") as producer:
        return await producer.send_many([b"%d" % n for n in range(count)], keys=keys, **times)


async def offsets(inbox: escapement.Inbox) -> list[int]:
    """What has come; what was published with keys has its own key and payload."""
    got = await arrived(inbox)
    keyed = [message for message in got if message.key is not None]
    assert all(m.payload == b"%d" % m.offset and m.key == f"k{m.offset}" for m in keyed)
    return [message.offset for message in got]


async def everything(broker: escapement.Broker, subscription: str, **options: Any) -> list[int]:
    """All that a subscription is delivered now, acknowledged."""
    found: list[int] = []
    async with broker.consumer("t", subscription, **options) as inbox:
        while got := await offsets(inbox):
            found += got
            await inbox.ack(got, durable=True)
    return found


def statuses(outcomes: escapement.Outcomes) -> list[AmendStatus]:
    """What became of each."""
    return [outcome.status for outcome in outcomes]
