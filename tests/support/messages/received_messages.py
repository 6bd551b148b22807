"""The messages that a consumer has received, and those of a whole log."""

from __future__ import annotations

from typing import Any

import escapement
from escapement.testing import arrived


async def values(inbox: escapement.Inbox) -> list[Any]:
    """Return the values of delivered messages. Acknowledge them without waiting."""
    messages = await arrived(inbox)
    await inbox.ack([message.id for message in messages])
    return [message.value for message in messages]


async def in_log(broker: escapement.Broker, topic: str) -> list[Any]:
    """Return the values of all messages in the log of a topic, in order."""
    return [message.value async for page in broker.read(topic) for message in page]
