"""Message groups in a batch: which of its messages belong to which group.

A batch has the group name of each message in a column of strings, which is empty for a message
without a group. This module finds the messages of each group without a loop over messages.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from escapement.errors import InvalidRequest
from escapement.message import Blobs, Int64s
from escapement.names import MAX_NAME_LENGTH, check_name


class Member(NamedTuple):
    """A group, and the messages of one batch that belong to it, by row or by offset."""

    group: str
    messages: Int64s  # their rows in the batch, or their offsets, ascending


def members_of(column: Blobs | None) -> list[Member]:
    """Return, for each group named in a batch, the rows of its messages; ordered by group name.

    Args:
      column: the group name of each message, or None if the batch has none.

    Raises:
      InvalidRequest: if a name is not valid for a group.

    Complexity: O(n log n) comparisons of names; O(n) if all messages belong to one group.
    """
    if column is None or not len(column):
        return []
    lengths = column.lengths
    width = int(lengths.max())
    if not width:
        return []
    if width > MAX_NAME_LENGTH:
        raise InvalidRequest(f"a group name has at most {MAX_NAME_LENGTH} bytes, not {width}")
    data = np.frombuffer(column.data, np.uint8)
    if not data.all():  # numpy ignores zero bytes at the end of a string
        raise InvalidRequest("a group name must not contain a zero byte")
    if int(lengths.min()) == width:
        table = data.reshape(-1, width)
        if (table == table[0]).all():
            return [Member(_name(table[0].tobytes()), np.arange(len(table)))]
    else:
        table = np.zeros((len(lengths), width), np.uint8)
        table[np.arange(width) < lengths[:, None]] = data
    names, which = np.unique(np.ascontiguousarray(table).view(f"S{width}"), return_inverse=True)
    which = which.reshape(-1)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=len(names))).tolist()
    return [
        Member(_name(name), order[low:high])
        for name, (low, high) in zip(names.tolist(), pairwise([0, *ends]), strict=True)
        if name
    ]


def _name(name: bytes) -> str:
    return check_name("group", name.decode("ascii", "replace"))
