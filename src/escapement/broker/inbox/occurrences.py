"""The messages of schedules, as inbox entries.

An *occurrence* is one of the times of a schedule. Its message has the properties ``schedule`` (the
full name of the schedule) and ``occurrence_ms``. A message that a user demanded between two
occurrences also has the property ``run_now``, and ``occurrence_ms`` is the time of the demand.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

import msgpack
import numpy as np

from escapement.message import NO_TIME, NO_TIMES, Blobs, Int64s, MessageBatch, Times
from escapement.spread import places_ms, seeds
from escapement.storage.inbox.entry import InboxEntry
from escapement.storage.inbox.schedule import Content, Schedule

# One occurrence: its time and its schedule.
Occurrence = tuple[int, Schedule]


def inbox_entry(
    topic: str, coming: Iterable[Occurrence], contents: Mapping[int, Content], until_ms: int
) -> InboxEntry:
    """Return the inbox entry with some occurrences for one topic, ordered by time.

    The source id names the first of them. No other entry has that occurrence.

    Args:
      contents: the content of each schedule, by its id.
      until_ms: the latest due time that a spread may lead to; 0 if the topic takes no due times.
    """
    ordered = sorted(((at_ms, one.id, one) for at_ms, one in coming), key=itemgetter(0, 1))
    found = [contents[id] for _, id, _ in ordered]
    properties = [{"schedule": one.name, "occurrence_ms": at_ms} for at_ms, _, one in ordered]
    times = NO_TIMES
    if until_ms and any(one.spread_ms for _, _, one in ordered):
        due_ms = np.concatenate([_due_ms(one, at_ms) for at_ms, _, one in ordered])
        times = Times(at_ms=np.minimum(due_ms, until_ms))
    first_ms, first_id, _ = ordered[0]
    return _entry(topic, f"schedule/{first_id}/{first_ms}", found, properties, times)


def demanded_entry(schedule: Schedule, content: Content, now_ms: int, demand: str) -> InboxEntry:
    """Return the inbox entry for a message of a schedule that a user demands now.

    Args:
      demand: a name for this demand. An entry with the same name is a repetition.
    """
    properties = {"schedule": schedule.name, "occurrence_ms": now_ms, "run_now": True}
    source_id = f"schedule/{schedule.id}/now/{demand}"
    return _entry(schedule.topic, source_id, [content], [properties], NO_TIMES)


def _due_ms(schedule: Schedule, at_ms: int) -> Int64s:
    """Return the due time of an occurrence, in its spread, as a column of one."""
    if not schedule.spread_ms:
        return np.array([NO_TIME])
    seed = seeds(schedule.name, np.array([at_ms]))
    return at_ms + places_ms(seed, schedule.spread_ms)


def _entry(
    topic: str,
    source_id: str,
    contents: list[Content],
    properties: list[dict[str, Any]],
    times: Times,
) -> InboxEntry:
    keys = [content.key for content in contents]
    packed: list[bytes] = [msgpack.packb(one) for one in properties]
    batch = MessageBatch(
        Blobs.of([content.payload for content in contents]),
        Blobs.of(keys) if any(keys) else None,
        Blobs.of(packed),
    )
    return InboxEntry(topic, source_id, batch.encode(), len(batch), times)
