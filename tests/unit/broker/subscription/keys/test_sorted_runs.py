"""The sorted rows behind the heads of their queues."""

from __future__ import annotations

import numpy as np
import pytest

from escapement.broker.subscription.keys.key_queues import KeyQueues
from escapement.broker.subscription.keys.key_table import KeyTable
from escapement.broker.subscription.priorities.ready import Rows
from escapement.traits import hash_keys
from support.messages.keyed_subscriptions import keyed


@pytest.mark.parametrize("span_ms", [100, 1 << 50])
def test_order_is_the_same_whether_or_not_it_packs_into_one_integer(
    span_ms: int,
) -> None:
    """Q9: key, rank and offset are packed if they fit."""
    rng = np.random.default_rng(1)
    due_ms, slots = rng.integers(0, span_ms, 500), rng.integers(0, 5, 500)
    table = KeyTable(whole=False)
    queues = KeyQueues(table, 0)
    given = keyed(*slots.tolist())
    queues.push(Rows.fresh(due_ms, rng.permutation(500), given))
    queues.lay_in()
    taken = []
    while len(queues):
        rows, indexes = queues.open(table.busy, 10, all_heads=False)
        queues.take(rows, indexes)
        taken.append(rows)
    found = Rows.concat(taken)
    assert found.traits is not None
    for slot in range(5):
        mine = found.due_ms[hash_keys(found.traits) == slot]
        assert (np.diff(mine) >= 0).all()
