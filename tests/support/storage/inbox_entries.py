"""Inbox entries for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from escapement.message import NO_TIMES, Blobs, MessageBatch, Times
from escapement.storage.engine.base import Connection
from escapement.storage.inbox import inbox
from escapement.storage.inbox.entry import InboxEntry
from escapement.testing import World


def inbox_entry(
    target: str,
    source_id: str,
    *payloads: bytes,
    delay_ms: list[int] | None = None,
    at_ms: list[int] | None = None,
) -> InboxEntry:
    """Return an inbox entry with these payloads, or with its source id as the only payload."""
    values = payloads or (source_id.encode(),)
    times = NO_TIMES
    if delay_ms is not None or at_ms is not None:
        times = Times(*(None if c is None else np.array(c, np.int64) for c in (delay_ms, at_ms)))
    return InboxEntry(
        target, source_id, MessageBatch(Blobs.of(values)).encode(), len(values), times
    )


async def post(world: World, inbox_entries: Sequence[InboxEntry]) -> None:
    """Insert inbox entries, and return when they are durable."""
    services, now_ms = world.server.services, world.clock.now_ms()

    def write(connection: Connection) -> None:
        inbox.insert(world._engine, connection, inbox_entries, now_ms)

    await services.pipeline.transact(write)
    world.server.services.inbox_relay.wake()
