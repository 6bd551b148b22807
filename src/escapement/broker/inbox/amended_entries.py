"""Begins requests to cancel or reschedule messages: applies them to inbox entries before them.

A request applies to all matching messages before it in the inbox, and to the messages that its
topic has. To *begin* requests, one transaction overwrites the entries of messages before them:
cancelled messages are left out, and the others get their new times. The same transaction records
the bound of the requests, the topic's next offset. After that, the requests concern only messages
below the bound. So the messages around them are moved at once, in one append, and need not wait for
a search.

The relay begins all requests of a step at once. The step has all entries before them, because it
begins with the first entry of the target. No append of the target is in progress at that moment.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from escapement.broker.inbox.decoded_entries import DecodedEntry
from escapement.message import NO_TIME, NO_TIMES, Bools, Int64s, Times
from escapement.storage.inbox.amend_request import (
    NOT_BEGUN,
    AmendRequests,
    LaterRequests,
    with_bound,
)
from escapement.storage.inbox.entry import MAX_ENTRY_BYTES, Content, InboxEntry, encode_inbox_entry

# A batch of other programs may fill its entry, so that a column of new times would not fit. Such
# messages are not rescheduled while they are in the inbox.
_MOST_BYTES: Final = MAX_ENTRY_BYTES - (1 << 20)


class Begun(NamedTuple):
    """The entries of a step after the beginning of its requests.

    ``rewritten`` has the new encoded content of entries by id, and ``emptied`` the ids of entries
    whose messages are all cancelled, which are not in ``entries``.
    """

    entries: list[DecodedEntry]
    rewritten: dict[int, bytes]
    emptied: list[int]


def begin(entries: Sequence[DecodedEntry], bound: int) -> Begun:
    """Begin the requests of a step that are not begun.

    Args:
      entries: the entries of the step, in order.
      bound: the next offset of their topic.
    """
    begun, later = Begun([], {}, []), LaterRequests()
    for entry in reversed(entries):
        content = entry.content
        if isinstance(content, AmendRequests):
            if content.bound == NOT_BEGUN:
                later.add(content.requests)
                content = content._replace(bound=bound)
                begun.rewritten[entry.id] = with_bound(content, bound)
        elif isinstance(content, Content) and later:
            amended = _amended(content, later)
            if amended is not content:
                if not len(amended.batch):
                    begun.emptied.append(entry.id)
                    continue
                begun.rewritten[entry.id] = _encoded(amended)
            content = amended
        begun.entries.append(entry._replace(content=content))
    begun.entries.reverse()
    return begun


def _amended(content: Content, later: LaterRequests) -> Content:
    """Return messages after the requests behind them; the same object if none is concerned."""
    batch, times, _, digests = content
    if not (batch.keys and later.by_key) and (digests is None or not later.by_dedup):
        return content
    keys = batch.strings(batch.keys)
    dedups = [b""] * len(batch) if digests is None else digests.tolist()
    kept, moved = np.ones(len(batch), bool), np.zeros(len(batch), bool)
    new_ms = np.full(len(batch), NO_TIME)
    for row, (key, dedup) in enumerate(zip(keys, dedups, strict=True)):
        last = later.last(key, dedup)
        if last is not None and last.cancels:
            kept[row] = False
        elif last is not None:
            moved[row], new_ms[row] = True, last.at_ms
    if len(content.body) + 8 * len(batch) > _MOST_BYTES:
        moved[:] = False
    if kept.all() and not moved.any():
        return content
    rows = np.flatnonzero(kept)
    times = _moved(times, moved, new_ms) if moved.any() else times
    times = times if times is NO_TIMES else times.take(rows)
    batch = batch.take(rows)
    return Content(batch, times, batch.encode(), None if digests is None else digests[rows])


def _moved(times: Times, moved: Bools, new_ms: Int64s) -> Times:
    delays_ms = None if times.delay_ms is None else np.where(moved, NO_TIME, times.delay_ms)
    old_ms = np.full(len(moved), NO_TIME) if times.at_ms is None else times.at_ms
    return Times(delays_ms, np.where(moved, new_ms, old_ms))


def _encoded(content: Content) -> bytes:
    batch, times, body, digests = content
    return encode_inbox_entry(InboxEntry("-", "-", body, len(batch), times, digests=digests))
