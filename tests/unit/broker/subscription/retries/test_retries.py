"""The timers of a subscription: what happens when they are all taken out and put back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.retries.retries import TIMER_TICK_MS, Retries
from support.messages.shared_subscriptions import column

NOW_MS = 1_006
# The first lies between the last tick and now.
WHEN_MS = column(1_003, 1_013, 1_500)


def waiting() -> Retries:
    """Return timers with a watch and a retry at each time, of messages due at 500."""
    retries = Retries(1_000)
    retries.watch(range(1, len(WHEN_MS) + 1), WHEN_MS.tolist())
    elapsed = retries.wait(Rows(column(500, 500, 500), column(0, 1, 2), column(1, 2, 3)), WHEN_MS)
    assert not elapsed.height
    assert retries.advance(NOW_MS) is None
    return retries


def fired_at(retries: Retries) -> dict[str, list[tuple[int, int]]]:
    """Return when each watch and each retry fires, by tick."""
    found: dict[str, list[tuple[int, int]]] = {"watches": [], "retries": []}
    for now_ms in range(NOW_MS // TIMER_TICK_MS * TIMER_TICK_MS, 2_000, TIMER_TICK_MS):
        fired = retries.advance(now_ms)
        if fired is not None:
            found["watches"] += [(delivery, now_ms) for delivery in fired.deliveries]
            found["retries"] += [(offset, now_ms) for offset in fired.rows.offsets.tolist()]
    return found


EVERY_WATCH = [(1, 1_010), (2, 1_020), (3, 1_500)]
EVERY_RETRY = [(0, 1_010), (1, 1_020), (2, 1_500)]


@pytest.mark.parametrize(
    ("act", "watches", "retried"),
    [
        (lambda retries: retries.tidy(column(2)), EVERY_WATCH[1:2], EVERY_RETRY),
        (lambda retries: retries.cancel(column(1, 7)), EVERY_WATCH, EVERY_RETRY[::2]),
        (lambda retries: retries.live(10_000), EVERY_WATCH, EVERY_RETRY),
        (lambda retries: retries.live(600), EVERY_WATCH, [*EVERY_RETRY[:2], (2, 1_100)]),
        (lambda retries: retries.live(1), EVERY_WATCH, [(0, 1_010), (1, 1_010), (2, 1_010)]),
        (lambda retries: retries.rewind(1_001), EVERY_WATCH, EVERY_RETRY),
    ],
    ids=["tidy", "cancel", "long ttl", "ttl", "short ttl", "rewind"],
)
def test_timers_fire_at_their_ticks_after_a_change(
    act: Callable[[Retries], None],
    watches: list[tuple[int, int]],
    retried: list[tuple[int, int]],
) -> None:
    """V4: also timers whose time has come, and whose tick has not."""
    retries = waiting()
    act(retries)
    assert fired_at(retries) == {"watches": watches, "retries": retried}


def test_retries_keep_their_attempts_and_due_times() -> None:
    """V4."""
    retries = waiting()
    retries.tidy(column())
    rows, when_ms = retries.waiting()
    order = np.argsort(rows.offsets)
    assert rows.attempts[order].tolist() == [1, 2, 3]
    assert rows.due_ms.tolist() == [500] * 3
    assert when_ms[order].tolist() == [NOW_MS + 1, *WHEN_MS[1:].tolist()]
