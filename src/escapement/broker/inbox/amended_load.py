"""Applies requests to cancel or reschedule messages to inbox entries that are not moved yet.

A request applies to all matching messages before it in the inbox. If such messages are moved
together, and some of them are due, the request would come too late for these. So the relay looks
ahead: it applies a request to the messages that it moves in the same step, before it appends them.
The request stays in the inbox, and is carried out for earlier messages afterwards. Doing it twice
does no harm: no message of the step comes after it.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from escapement.broker.inbox.relay_load import Load
from escapement.dedup import Digests
from escapement.message import NO_TIME, NO_TIMES, Bools, Int64s, Times
from escapement.storage.inbox.amend_request import AmendRequest


def amend(load: Load, requests: Sequence[AmendRequest]) -> None:
    """Remove the cancelled messages of a load, and give the rescheduled ones their new times.

    Args:
      requests: those that follow the load, in order.
    """
    by_key = {one.key for one in requests if one.key}
    by_dedup = {one.dedup for one in requests if one.dedup}
    for at, batch in enumerate(load.batches):
        marks = [
            _rows(batch.strings(batch.keys) if by_key else [], by_key),
            _rows(_texts(load.digests[at]) if by_dedup else [], by_dedup),
        ]
        if any(marks):
            _amend_batch(load, at, marks, requests)


def _amend_batch(
    load: Load, at: int, marks: list[dict[bytes, list[int]]], requests: Sequence[AmendRequest]
) -> None:
    """Apply requests to one batch of a load.

    Args:
      marks: the rows of the batch by key, and by the digest of their dedup key.
    """
    batch, times, digests = load.batches[at], load.times[at], load.digests[at]
    kept, moved = np.ones(len(batch), bool), np.zeros(len(batch), bool)
    new_ms = np.full(len(batch), NO_TIME)
    for one in requests:
        rows = marks[0].get(one.key, []) if one.key else marks[1].get(one.dedup, [])
        if one.cancels:
            kept[rows] = False
        else:
            moved[rows], new_ms[rows] = True, one.at_ms
    if moved.any():
        times = _moved(times, moved, new_ms)
    if not kept.all():
        rows_kept = np.flatnonzero(kept)
        batch = batch.take(rows_kept)
        times = NO_TIMES if times is NO_TIMES or not len(batch) else times.take(rows_kept)
        digests = None if digests is None else digests[rows_kept]
        load.bodies[at] = batch.encode()
    load.batches[at], load.times[at], load.digests[at] = batch, times, digests


def _moved(times: Times, moved: Bools, new_ms: Int64s) -> Times:
    delays_ms = None if times.delay_ms is None else np.where(moved, NO_TIME, times.delay_ms)
    old_ms = np.full(len(moved), NO_TIME) if times.at_ms is None else times.at_ms
    return Times(delays_ms, np.where(moved, new_ms, old_ms))


def _rows(values: Sequence[bytes], wanted: set[bytes]) -> dict[bytes, list[int]]:
    """Return the rows of each wanted value."""
    found: dict[bytes, list[int]] = {}
    for row, value in enumerate(values):
        if value in wanted:
            found.setdefault(value, []).append(row)
    return found


def _texts(digests: Digests | None) -> list[bytes]:
    return [] if digests is None else digests.tolist()
