"""Cancelled and moved messages, compared with plain dictionaries."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.log.amendments import Amendments

DUE_MS = st.integers(0, 3)
OFFSETS = st.sets(st.integers(0, 5))
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("cancel"), OFFSETS),
        st.tuples(st.just("commit cancels"), OFFSETS),
        st.tuples(st.just("withhold"), OFFSETS),
        st.tuples(st.just("release"), OFFSETS),
        st.tuples(st.just("move"), st.dictionaries(st.integers(0, 5), DUE_MS)),
    ),
    max_size=12,
)


def column(values: Any) -> Any:
    return np.array(sorted(values), np.int64)


@given(st.tuples(*[DUE_MS] * 6), CHANGES, st.lists(st.tuples(DUE_MS, st.integers(0, 5))))
def test_keys_are_delivered_only_while_they_are_current(
    first_ms: tuple[int, ...],
    changes: list[tuple[str, Any]],
    asked: list[tuple[int, int]],
) -> None:
    """B1: a cancelled message has no deliverable key, and a withheld one neither."""
    amendments = Amendments()
    current = dict(enumerate(first_ms))
    history = {(due, offset) for offset, due in current.items()}  # all keys that there ever were
    moved: set[int] = set()
    cancelled: set[int] = set()
    durable: set[int] = set()
    withheld: set[int] = set()
    for change, arguments in changes:
        if change == "cancel":
            amendments.cancelled.take(column(arguments - cancelled))
            cancelled |= arguments
        elif change == "commit cancels":
            amendments.cancelled.committed(column(arguments & cancelled))
            durable |= arguments & cancelled
        elif change == "withhold":
            amendments.withhold(column(arguments))
            withheld |= arguments
        elif change == "release":
            amendments.release(column(arguments))
            withheld -= arguments
        else:
            offsets = sorted(arguments)
            amendments.withhold(column(offsets))
            amendments.move(
                column(offsets),
                np.array([arguments[offset] for offset in offsets], np.int64),
                np.array([current[offset] for offset in offsets], np.int64),
                np.full(len(offsets), -7),
            )
            current |= arguments
            history |= {(due, offset) for offset, due in arguments.items()}
            moved |= set(arguments)
            withheld -= set(arguments)
    # The index and the wheel still have all keys. Those of moved messages may be there twice.
    again = [key for key in asked if key in history and key[1] in moved]
    keys = sorted([*history, *again])
    due_ms = np.array([due for due, _ in keys], np.int64)
    offsets = np.array([offset for _, offset in keys], np.int64)

    def mask(found: Any, default: bool) -> list[bool]:
        return [default] * len(keys) if found is None else found.tolist()

    assert mask(amendments.deliverable(due_ms, offsets), True) == [
        current[offset] == due
        and offset not in cancelled | withheld
        and (row == 0 or keys[row - 1] != (due, offset))
        for row, (due, offset) in enumerate(keys)
    ]
    assert mask(amendments.hidden(due_ms, offsets), False) == [
        current[offset] != due or offset in cancelled for due, offset in keys
    ]
    assert mask(amendments.gone(due_ms, offsets), False) == [
        current[offset] != due or offset in durable for due, offset in keys
    ]
    assert amendments.changed(offsets).tolist() == [
        offset in cancelled | withheld | moved for _, offset in keys
    ]
