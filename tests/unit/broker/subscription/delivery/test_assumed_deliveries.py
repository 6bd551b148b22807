"""Tests of the messages that count as delivered and stay in the index (B1)."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.subscription.delivery.assumed_deliveries import AssumedDeliveries
from escapement.broker.subscription.number_map import NOWHERE
from escapement.broker.subscription.priorities.ready import Rows
from escapement.storage.encoding.attempts import RELEASED
from support.messages.shared_subscriptions import column

ROW = st.tuples(st.integers(1, 9), st.integers(0, 20), st.integers(0, 3))


def rows_of(rows: list[tuple[int, int, int]]) -> Rows:
    due_ms, offsets, attempts = zip(*rows, strict=True) if rows else ((), (), ())
    return Rows(column(*due_ms), column(*offsets), column(*attempts) | RELEASED)


@given(st.lists(st.lists(ROW, max_size=5, unique_by=lambda row: row[1]), max_size=5))
def test_last_row_of_each_message_counts(added: Any) -> None:
    """Like a dict."""
    assumed, model = AssumedDeliveries(), {}
    for rows in added:
        assumed.add(rows_of(rows))
        for due_ms, offset, attempts in rows:
            model[offset] = (due_ms, attempts)
    offsets = np.arange(22)
    assert len(assumed) == len(model)
    assert assumed.contains(offsets).tolist() == [offset in model for offset in range(22)]
    assert assumed.due_ms(offsets).tolist() == [
        model.get(offset, (NOWHERE, 0))[0] for offset in range(22)
    ]
    read = assumed.with_attempts(Rows.fresh(np.ones(22, np.int64), offsets))
    assert read.attempts.tolist() == [
        model[offset][1] | RELEASED if offset in model else 0 for offset in range(22)
    ]


def test_message_that_was_delivered_again_keeps_its_newer_attempts() -> None:
    """V4: the row has the attempts from before the restart."""
    assumed = AssumedDeliveries()
    assumed.add(rows_of([(1, 7, 2)]))
    read = assumed.with_attempts(Rows(column(1, 1), column(7, 8), column(4, 0)))
    assert read.attempts.tolist() == [4, 0]
