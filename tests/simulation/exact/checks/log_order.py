"""Checks of exclusive and failover subscriptions: log order and the active consumer (P7).

These subscriptions ignore due times. When a message arrives, every earlier message of the log must
be done, in flight or in retry.
"""

from __future__ import annotations

from simulation.exact.arrival import Arrival
from simulation.exact.model import LATE_MS, Expectation, Model


def note_passed(model: Model, arrival: Arrival) -> None:
    """Note messages that should perhaps have come before an arrival. Call it before entering it."""
    expectation, offset = model.expectations[arrival.name], arrival.offset
    assert arrival.is_active is not False, f"{offset} came to a consumer that is not active"
    if arrival.is_active is None:
        return  # the consumer is leaving
    in_retry = {
        o for o, wait in expectation.retries.items() if wait.until_ms + LATE_MS > arrival.now_ms
    }
    tried = expectation.delivered.keys() - expectation.returned - expectation.retries.keys()
    passed = {
        other
        for other in range(expectation.since_offset, offset)
        if other not in expectation.in_flight and other not in in_retry and other not in tried
    }
    if passed:
        expectation.passed_in_log.append(
            (arrival.moment, passed, passed & expectation.delivered.keys(), offset)
        )


def check_passed(model: Model, expectation: Expectation) -> None:
    """Fail if an arrival has passed a pending message.

    Call it when the model knows which messages were cancelled, acknowledged or have expired.
    """
    wanted = model.wanted(expectation)
    for moment, passed, tried, offset in expectation.passed_in_log:
        for other in (
            (passed & wanted)
            - expectation.maybe_done
            - expectation.optional
            - expectation.given_up()
        ):
            acked = expectation.acked.get(other, moment)
            # For delivered messages the model does not know when the broker got the ack.
            acked = 0 if other in expectation.acked and other in tried else acked
            assert acked < moment, f"{other} should have come before {offset}"
    expectation.passed_in_log = []


def check_beginning(model: Model, expectation: Expectation, at_ms: int) -> None:
    """Check that a subscription begins at the first message published at ``at_ms`` or later.

    If the clock was set back, several offsets meet that condition.
    """
    start = expectation.since_offset
    first = model.stored[start] if start < model.end else None
    # Relocated messages from before the beginning of the log are not read in log order.
    before = model.stored[start - 1] if start and start - 1 not in expectation.optional else None
    assert first is None or first.published_ms >= at_ms, "the subscription begins too early"
    assert before is None or before.published_ms < at_ms, "the subscription begins too late"
