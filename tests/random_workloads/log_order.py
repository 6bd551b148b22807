"""Exclusive and failover subscriptions: the order of the log, and whose turn it is (P7).

Times mean nothing to them. What comes may have nothing before it in the log that is still to be
done and in nobody's hands, but for what waits for another attempt.
"""

from __future__ import annotations

from random_workloads.arrival import Arrival
from random_workloads.model import LATE_MS, Expectation, Model


def note_passed(model: Model, arrival: Arrival) -> None:
    """Asked before an arrival is entered in the model: what should perhaps have come before."""
    expectation, offset = model.expectations[arrival.name], arrival.offset
    assert arrival.is_active is not False, f"{offset} came to one whose turn it is not"
    if arrival.is_active is None:
        return  # to one that is just leaving
    waits = {o for o, wait in expectation.waits.items() if wait.until_ms + LATE_MS > arrival.now_ms}
    tried = expectation.seen.keys() - expectation.back - expectation.waits.keys()
    passed = {
        other
        for other in range(expectation.since_offset, offset)
        if other not in expectation.hands and other not in waits and other not in tried
    }
    if passed:
        expectation.passed.append(
            (arrival.moment, passed, passed & expectation.seen.keys(), offset)
        )


def check_passed(model: Model, expectation: Expectation) -> None:
    """Asked once it is known what was cancelled, acknowledged or has expired."""
    wanted = model.wanted(expectation)
    for moment, passed, tried, offset in expectation.passed:
        for other in (
            (passed & wanted) - expectation.perhaps - expectation.lucky - expectation.over()
        ):
            acked = expectation.acked.get(other, moment)
            # Of what had been handed out it is not known when the broker heard of it.
            acked = 0 if other in expectation.acked and other in tried else acked
            assert acked < moment, f"{other} should have come before {offset}"
    expectation.passed = []


def check_beginning(model: Model, expectation: Expectation, at_ms: int) -> None:
    """It begins with something accepted by then, and what lies just before was accepted earlier.

    Where the clock was set back there are several such places.
    """
    start = expectation.since_offset
    first = model.stored[start] if start < model.end else None
    # What was relocated from before the log's beginning is not read in its order.
    before = model.stored[start - 1] if start and start - 1 not in expectation.lucky else None
    assert first is None or first.published_ms >= at_ms, "it begins too early"
    assert before is None or before.published_ms < at_ms, "it begins too late"
