"""Where to look for what has expired in a log, against a model that knows every message."""

from __future__ import annotations

import random

import numpy as np
import pytest

from escapement.broker.subscription.dead_letters import backlog_ages
from escapement.broker.subscription.dead_letters.backlog_ages import Ages


def look(told: Ages, due: dict[int, int], end: int, until_ms: int, chance: random.Random) -> None:
    """What a sweep does: look at what may be oldest, a bounded piece at a time."""
    while (found := told.oldest(end)) is not None and found[2] <= until_ms:
        low, high, _ = found
        high = min(high, low + chance.randrange(1, 7))
        for offset in [one for one in due if low <= one < high and due[one] <= until_ms]:
            del due[offset]
        since_ms = min((due[one] for one in due if low <= one < high), default=None)
        told.looked(low, high, since_ms)
        told._check()


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_has_expired_is_overlooked_and_nothing_else_is_let_go(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: messages arrive, are done, come back and are moved, while time passes."""
    monkeypatch.setattr(backlog_ages, "SPAN_MESSAGES", 5)
    chance = random.Random(seed)
    told, end, now_ms, ttl_ms = Ages(), 0, 0, 20
    due: dict[int, int] = {}
    for _ in range(300):
        now_ms += chance.randrange(4)
        for _ in range(chance.randrange(4)):
            due[end] = now_ms + chance.choice([0, 0, 3, 40, 100])
            end += 1
        if chance.random() < 0.3 and due:
            del due[chance.choice(list(due))]  # acknowledged
        if chance.random() < 0.3 and end:
            moved = chance.sample(range(end), min(end, chance.randrange(1, 4)))
            offsets = np.array(sorted(moved))
            due_ms = np.array([now_ms + chance.randrange(5) for _ in moved])
            due |= dict(zip(offsets.tolist(), due_ms.tolist(), strict=True))
            told.again(offsets, due_ms)
            told._check()
        look(told, due, end, now_ms - ttl_ms, chance)
        assert all(due_ms > now_ms - ttl_ms for due_ms in due.values())
        found = told.oldest(end)
        assert found is not None or not due


def test_a_long_log_takes_a_span_for_some_thousand_messages() -> None:
    """P10: memory does not follow the messages one by one."""
    told = Ages()
    for low in range(0, 1_000_000, 100):
        told.looked(low, low + 100, 1_000)
    assert len(told._lows) <= 1_000_000 // (backlog_ages.SPAN_MESSAGES - 100) + 1
