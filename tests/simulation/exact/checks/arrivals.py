"""The checks of each delivery."""

from __future__ import annotations

import escapement
from simulation.exact.arrival import Arrival, slot_of
from simulation.exact.checks.due_order import note_order
from simulation.exact.checks.log_order import note_passed
from simulation.exact.model import LATE_MS, NO_QUOTA, Delivery, Expectation, Model


def arrive(model: Model, arrival: Arrival) -> None:
    """Check an arrival and enter it in the model."""
    expectation, offset = model.expectations[arrival.name], arrival.offset
    message = model.stored[offset]
    if message is None:
        return
    found = (arrival.value, arrival.key, arrival.priority)
    assert found == (message.value, message.key, message.priority)
    _check_expectation(model, expectation, arrival)
    _check_mark(model, expectation, arrival, model.known_ms(expectation, offset))
    _check_limits(model, expectation, arrival)
    _check_keys(model, expectation, arrival)
    if expectation.in_log_order:
        note_passed(model, arrival)
        expectation.returned.discard(offset)
    else:
        note_order(model, arrival)
        if expectation.maybe_kept_due_ms.pop(offset, None) == arrival.due_ms:
            expectation.kept_due_ms[offset] = arrival.due_ms
    expectation.retries.pop(offset, None)
    if offset not in expectation.acked:  # it was on its way when its acknowledgement was sent
        slot = slot_of(arrival.key)
        delivery = Delivery(arrival.inbox, arrival.until_ms, slot, arrival.attempt, arrival.now_ms)
        expectation.in_flight[offset] = delivery
    expectation.delivered[offset] = arrival.crashes


def _check_expectation(model: Model, expectation: Expectation, arrival: Arrival) -> None:
    """Check that the subscription must get the message now (invariants 2, 3, 5)."""
    offset, due_ms = arrival.offset, arrival.due_ms
    if not expectation.in_log_order:
        assert due_ms <= arrival.now_ms, f"{offset} is early"
        # The index may still have former due times of a message that the log has deleted.
        times_ms = {model.due_ms(expectation, offset), expectation.maybe_kept_due_ms.get(offset)}
        assert due_ms in times_ms or offset in expectation.optional, f"{offset} was not due then"
    assert expectation.must_get(offset, due_ms), f"{offset} is not for this subscription"
    assert offset not in expectation.deleted, f"{offset} was deleted from the log"
    assert expectation.acked.get(offset, arrival.moment) >= arrival.moment, (
        f"{offset} was acknowledged"
    )
    assert offset not in expectation.dead_lettered.values(), f"{offset} was dead-lettered"
    assert offset not in expectation.dropped, f"{offset} was dropped"
    delivery = expectation.in_flight.get(offset)
    assert delivery is None or delivery.until_ms <= arrival.now_ms, f"{offset} is in flight already"
    wait = expectation.retries.get(offset)
    assert wait is None or wait.until_ms <= arrival.now_ms, (
        f"{offset} was redelivered before its back-off"
    )


def _check_mark(model: Model, expectation: Expectation, arrival: Arrival, first_ms: int) -> None:
    """Check the redelivery mark and the attempt (invariant 6, V4)."""
    before = expectation.recorded_attempts.pop(arrival.offset, 0)
    assert arrival.attempt > before, f"{arrival.offset} was delivered {before} times already"
    crashes = expectation.delivered.get(arrival.offset)
    if crashes is not None:
        # The clock was set back, and then a broker crashed. Leases are never renewed here, so
        # the database has no record of the latest time. See test_lease.py.
        unknown = crashes < arrival.crashes and first_ms > model.crashes[arrival.crashes - 1]
        assert arrival.redelivered or unknown, f"{arrival.offset} was redelivered without the mark"
    elif arrival.redelivered:
        # The mark may be wrong after a crash, or when an inbox was closed at that moment.
        doubtful_ms = max(model.doubtful_ms, expectation.left_ms)
        assert arrival.attempt > 1 or first_ms <= doubtful_ms, (
            f"{arrival.offset} is marked, but it is its first delivery"
        )


def _check_limits(model: Model, expectation: Expectation, arrival: Arrival) -> None:
    """Check the time-to-live, pauses, the rate and the bound of messages in flight."""
    policy, topic = arrival.policy, arrival.topic_policy
    now_ms, ttl_ms = arrival.now_ms, 0 if topic is None else topic.get("ttl_ms", 0)
    assert not ttl_ms or now_ms < arrival.due_ms + ttl_ms, f"{arrival.offset} has expired"
    for one in (policy, topic):
        assert one is None or now_ms >= one.get("paused_until_ms", 0), "it is paused"
    if policy is None:
        return
    if rate := policy.get("max_rate", 0):
        expectation.deliveries_ms.append(now_ms)
        for row, at_ms in enumerate(expectation.deliveries_ms):
            most = rate * ((now_ms - at_ms) / 1000 + 0.1) + 1
            assert len(expectation.deliveries_ms) - row <= most, "faster than the rate"
    if most := policy.get("max_in_flight", 0):
        # An acknowledged message is no longer in flight, even before the ack is durable.
        out = {
            o for o, delivery in expectation.in_flight.items() if delivery.until_ms > now_ms
        } - expectation.maybe_done
        assert len(out | {arrival.offset}) <= most, "too many are in flight"


def _check_keys(model: Model, expectation: Expectation, arrival: Arrival) -> None:
    """Check the key range, and that one message of a key is in flight or in retry at a time."""
    if isinstance(arrival.key_range, tuple) and arrival.key:
        first, last = arrival.key_range
        assert first <= escapement.slot_of(arrival.key) <= last, (
            "outside the key range of the consumer"
        )
    slot, whole = arrival.slot, (arrival.policy or {}).get("order") == "topic"
    if slot is None:
        return
    holding = dict(expectation.in_flight)
    # A quota may drop messages in retry.
    may_go = any(quota != NO_QUOTA for quota in model.quotas + model.quotas_now())
    if (arrival.policy or {}).get("on_retry", "hold") == "hold" and not may_go:
        waits = {
            o: w
            for o, w in expectation.retries.items()
            if not _expires(model, expectation, arrival, o)
        }
        holding |= waits
    for offset, delivery in holding.items():
        if offset in expectation.maybe_done or offset in expectation.dropped:
            continue  # it may be done
        if offset != arrival.offset and delivery.until_ms > arrival.now_ms:
            assert not whole, f"{offset} is in flight already"
            assert delivery.slot != slot, f"{offset} of this key is in flight already"


def _expires(model: Model, expectation: Expectation, arrival: Arrival, offset: int) -> bool:
    """Return whether a message in retry may have expired: no retry outlasts its time-to-live."""
    if arrival.topic_policy is None:
        return True
    ttl_ms = arrival.topic_policy.get("ttl_ms", 0)
    return bool(ttl_ms) and model.due_ms(expectation, offset) + ttl_ms <= arrival.now_ms


def check_order(model: Model, arrival: Arrival) -> None:
    """Check that no message that was clearly due earlier is still undelivered.

    Call it when all arrivals of the same moment are in the model.
    """
    expectation = model.expectations[arrival.name]
    if arrival.attempt > 1 or arrival.priority != 50 or arrival.policy is None:
        return
    if expectation.in_log_order:
        return
    if arrival.now_ms < model.high_ms or model.stored[arrival.offset] is None:
        return
    if arrival.offset < expectation.ordered_from:
        return
    slot = arrival.slot
    if arrival.ranged and not slot:
        return  # no consumer may have the range of the other message
    if slot is None and arrival.policy.get("order", "any") != "any":
        return
    for offset in range(expectation.ordered_from, model.end):
        other = model.stored[offset]
        if other is None or other.priority != 50 or offset in expectation.delivered:
            continue
        key = (model.due_ms(expectation, offset), offset)
        ready_ms = max(key[0], other.since_ms) + LATE_MS
        if key >= (arrival.due_ms, arrival.offset) or ready_ms > arrival.now_ms:
            continue
        if (
            not expectation.must_get(offset, key[0])
            or offset in expectation.maybe_done | expectation.done()
        ):
            continue
        # A message that waits for its key is compared only with messages of that key.
        behind = slot is not None and slot != 0 and slot_of(other.key) != slot
        assert behind, f"{offset} should have come before {arrival.offset}"
