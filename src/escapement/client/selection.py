"""Selections: the offsets of pending messages that match, to count, cancel or reschedule them.

A message is pending if it is not yet due, or a shared subscription has not acknowledged it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from escapement.client import content, delivery_times
from escapement.client.connection.retried_request import REQUEST_ROWS, Ask
from escapement.message import Int64s
from escapement.names import TopicName


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The offsets of selected messages of one topic, ordered by due time.

    ``Broker.select`` creates it. Messages published after that are not included.
    """

    topic: str
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.offsets)

    def parts(self) -> Iterator[Selection]:
        """Split the selection into parts small enough for one request each.

        A caller that cancels or reschedules the parts one by one can show its progress.
        """
        for low in range(0, len(self), REQUEST_ROWS):
            yield Selection(self.topic, self.offsets[low : low + REQUEST_ROWS])


def criteria(
    due_from: datetime | None = None,
    due_until: datetime | None = None,
    key: str | None = None,
    properties: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the arguments by which the verbs ``topics.peek`` and ``messages.select`` search.

    Args:
      due_from, due_until: only messages due at or after ``due_from``, and before ``due_until``.
      key: only messages with this key.
      properties: only messages with all of these properties.

    Raises:
      InvalidRequest: if a time has no time zone, or ``properties`` is not a map.
    """
    return {
        "from_ms": None if due_from is None else delivery_times.at_ms(due_from, "due_from") or None,
        "until_ms": (
            None if due_until is None else max(1, delivery_times.at_ms(due_until, "due_until"))
        ),
        "key": key,
        "properties": content.as_map(properties),
    }


async def select(
    ask: Ask,
    topic: str,
    sought: dict[str, Any],
    progress: Callable[[int], None] | None = None,
) -> Selection:
    """Select the pending messages of a topic that match, page by page.

    Args:
      ask: sends a verb with its arguments to the broker.
      topic: the name of the topic, in any form.
      sought: what the messages must match, from ``criteria``.
      progress: called with the number of messages found, after each page but the last.
    """
    full = TopicName.parse(topic).full
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
