"""Selections of pending messages, to count, cancel or reschedule them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np

from escapement.client import content, delivery_times
from escapement.message import Int64s
from escapement.names import TopicName

_PART: Final = 32_768


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """A selection of messages of one topic, in the delivery order.

    Messages published after the selection are not included.
    """

    topic: str
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.offsets)

    def parts(self) -> Iterator[Selection]:
        """Split the selection into parts of one request each, so that callers show progress."""
        for low in range(0, len(self), _PART):
            yield Selection(self.topic, self.offsets[low : low + _PART])


async def select(
    ask: Callable[..., Awaitable[Any]],
    topic: str,
    due_from: datetime | None,
    due_until: datetime | None,
    key: str | None,
    properties: Mapping[str, Any] | None,
    progress: Callable[[int], None] | None = None,
) -> Selection:
    """Select pending messages; see ``escapement.Broker.select``."""
    full = TopicName.parse(topic).full
    sought = {
        "from_ms": None if due_from is None else delivery_times.at_ms(due_from) or None,
        "until_ms": None if due_until is None else max(1, delivery_times.at_ms(due_until)),
        "key": key,
        "properties": content.as_map(properties),
    }
    found: list[Int64s] = [np.zeros(0, np.int64)]
    after: list[int] | None = None
    while True:
        page = await ask("messages.select", topic=full, after=after, **sought)
        found.append(np.frombuffer(page["offsets"], "<i8").astype(np.int64))
        after = page["next"]
        if after is None:
            # A message rescheduled during the search may appear twice.
            offsets, first = np.unique(np.concatenate(found), return_index=True)
            return Selection(full, offsets[np.argsort(first)])
        if progress is not None:
            progress(sum(map(len, found)))
