"""The order of the messages of one key, or of the topic, where a subscription asks for it (Q9).

Messages are ordered by rank, ``due + (priority - 50) * priority_ageing``, then by offset. The order
holds at every moment, whatever the tick, so the check allows for no lateness. When a message
arrives, no other message of its key with a lower rank may be

- due and undelivered, if both have the same priority;
- due, undelivered and certainly in the ready queue when the step began, if their priorities differ
  (V5 compares only messages that the bands have read);
- delivered before and not done, unless the policy lets other messages pass retries.

``note_order`` notes the messages that an arrival seems to have passed. ``check_order_of_keys``
runs after the step, when the model knows which of them were cancelled, rescheduled, dropped or
dead-lettered.
"""

from __future__ import annotations

from simulation.exact.arrival import Arrival, slot_of
from simulation.exact.checks.priority_order import AGEING_MS
from simulation.exact.model import Expectation, Model, Stored


def note_order(model: Model, arrival: Arrival) -> None:
    """Note messages that should perhaps have come before an arrival. Call it before entering it."""
    expectation, policy, slot = model.expectations[arrival.name], arrival.policy, arrival.slot
    if policy is None:
        expectation.delivered_before_order.add(arrival.offset)
    if (
        policy is None
        or arrival.offset in expectation.delivered_before_order
        or slot is None
        or arrival.now_ms < model.high_ms
    ):
        return
    whole = policy.get("order") == "topic"
    if arrival.offset < model.steady_from or (whole and arrival.ranged):
        return  # messages outside all ranges do not hold up others
    ageing_ms = policy.get("priority_ageing_ms", AGEING_MS)
    rank = arrival.due_ms + (arrival.priority - 50) * ageing_ms, arrival.offset
    passed = {}
    for offset in range(model.steady_from, model.end):
        other = model.stored[offset]
        if other is None or offset == arrival.offset or offset in expectation.acked:
            continue
        if not whole and slot_of(other.key) != slot:
            continue
        due_ms = model.due_ms(expectation, offset)
        before = due_ms + (other.priority - 50) * ageing_ms, offset
        if before < rank and _counts(model, expectation, arrival, offset, other):
            passed[offset] = due_ms
    if passed:
        expectation.passed_of_key.append((arrival.offset, passed))


def _counts(
    model: Model, expectation: Expectation, arrival: Arrival, offset: int, other: Stored
) -> bool:
    """Return whether a pending message of lower rank must come before an arrival."""
    if offset in expectation.delivered:
        policy = arrival.policy or {}
        # After a crash the broker may not know about the delivery, and reads the message again.
        known = (
            other.priority == arrival.priority or expectation.delivered[offset] == arrival.crashes
        )
        may_be_dead_lettered = bool(policy.get("max_deliveries"))  # it may be dead-lettered
        return policy.get("on_retry", "hold") == "hold" and known and not may_be_dead_lettered
    if model.due_ms(expectation, offset) > arrival.now_ms:
        return False
    if other.since_ms == arrival.now_ms and other.since_ms != other.published_ms:
        return False  # it was rescheduled to this time at this moment
    return other.priority == arrival.priority or offset in expectation.ready


def check_order_of_keys(model: Model, expectation: Expectation, *, calm: bool) -> None:
    """Fail if an arrival has passed a message that the subscription still had to get.

    Args:
      calm: whether messages became durable when they were accepted. Messages that became durable
        later may be passed.
    """
    wanted = (
        model.wanted(expectation)
        - expectation.maybe_done
        - expectation.optional
        - expectation.deleted
        - expectation.given_up()
    )
    for first, passed in expectation.passed_of_key if calm else ():
        for offset, due_ms in passed.items():
            if offset in wanted and model.due_ms(expectation, offset) == due_ms:
                raise AssertionError(f"{offset} of this key should have come before {first}")
    expectation.passed_of_key = []
