"""What has come to a consumer."""

from __future__ import annotations

from typing import Any

import escapement
from escapement.testing import arrived


async def values(inbox: escapement.Inbox) -> list[Any]:
    """What has come, acknowledged; nobody waits for that."""
    messages = await arrived(inbox)
    await inbox.ack([message.id for message in messages])
    return [message.value for message in messages]
