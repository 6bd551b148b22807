"""The search for expired messages in a log, compared with a model of every message."""

from __future__ import annotations

import random

import numpy as np
import pytest

from escapement.broker.subscription.dead_letters import backlog_ages
from escapement.broker.subscription.dead_letters.backlog_ages import Ages


def look(ages: Ages, due: dict[int, int], end: int, until_ms: int, chance: random.Random) -> None:
    """Sweep as the broker does: look for the oldest messages, a bounded piece at a time."""
    while (found := ages.oldest(end)) is not None and found[2] <= until_ms:
        low, high, _ = found
        high = min(high, low + chance.randrange(1, 7))
        for offset in [one for one in due if low <= one < high and due[one] <= until_ms]:
            del due[offset]
        since_ms = min((due[one] for one in due if low <= one < high), default=None)
        ages.looked(low, high, since_ms)
        ages._check()


@pytest.mark.parametrize("seed", range(20))
def test_sweep_finds_exactly_the_expired_messages(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: messages are published, acknowledged, redelivered and moved while time passes."""
    monkeypatch.setattr(backlog_ages, "SPAN_MESSAGES", 5)
    chance = random.Random(seed)
    ages, end, now_ms, ttl_ms = Ages(), 0, 0, 20
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
            ages.again(offsets, due_ms)
            ages._check()
        look(ages, due, end, now_ms - ttl_ms, chance)
        assert all(due_ms > now_ms - ttl_ms for due_ms in due.values())
        found = ages.oldest(end)
        assert found is not None or not due


def test_long_log_needs_one_span_for_several_thousand_messages() -> None:
    """P10: memory does not grow with each message."""
    ages = Ages()
    for low in range(0, 1_000_000, 100):
        ages.looked(low, low + 100, 1_000)
    assert len(ages._lows) <= 1_000_000 // (backlog_ages.SPAN_MESSAGES - 100) + 1
