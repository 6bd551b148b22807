"""The return queue: what is sent for queued nacks and releases."""

from __future__ import annotations

import numpy as np

from escapement.client.consuming.return_queue import BACK_OFF, ReturnKind, ReturnQueue
from escapement.protocol.commands import Nack, Release
from escapement.protocol.limits import MAX_ACK_ROWS


def taken(queue: ReturnQueue) -> list[tuple[ReturnKind, list[int], int]]:
    return [(kind, offsets.tolist(), delay_ms) for kind, offsets, delay_ms, _ in queue.take()]


def test_each_command_and_delay_is_sent_once_with_all_its_offsets() -> None:
    """V4: a release and a nack of the same delay are different commands."""
    queue = ReturnQueue()
    queue.add(Nack, np.array([3]), BACK_OFF)
    queue.add(Release, np.array([5, 4]), 0)
    queue.add(Nack, np.array([1, 2]), BACK_OFF)
    queue.add(Nack, np.array([6]), 0)
    assert taken(queue) == [
        (Nack, [3, 1, 2], BACK_OFF),
        (Release, [5, 4], 0),
        (Nack, [6], 0),
    ]
    assert taken(queue) == []


def test_many_offsets_are_split_into_columns_that_fit_a_frame() -> None:
    """V4: no offset is lost or sent twice."""
    queue = ReturnQueue()
    half = MAX_ACK_ROWS // 2 + 1
    for first in range(0, 5 * half, half):
        queue.add(Nack, np.arange(first, first + half), 1)
    columns = [offsets for _, offsets, *_ in queue.take()]
    assert [len(column) for column in columns] == [
        MAX_ACK_ROWS,
        MAX_ACK_ROWS,
        5 * half - 2 * MAX_ACK_ROWS,
    ]
    assert np.array_equal(np.concatenate(columns), np.arange(5 * half))


def test_cleared_returns_are_not_sent() -> None:
    """V4: the broker redelivers the messages when the connection is lost."""
    queue = ReturnQueue()
    queue.add(Release, np.array([1]), 0)
    queue.clear()
    assert taken(queue) == []
    queue.add(Release, np.array([2]), 0)
    assert taken(queue) == [(Release, [2], 0)]
