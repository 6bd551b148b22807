"""A message comes to a consumer: everything that must be true of it then."""

from __future__ import annotations

import escapement
from lives.arrival import Arrival, slot_of
from lives.dueorder import note_order
from lives.logorder import note_passed
from lives.model import LATE_MS, NO_QUOTA, Claim, Hand, Model


def arrive(model: Model, arrival: Arrival) -> None:
    """Check one, and remember it."""
    claim, offset = model.claims[arrival.name], arrival.offset
    message = model.stored[offset]
    if message is None:
        return
    found = (arrival.value, arrival.key, arrival.priority)
    assert found == (message.value, message.key, message.priority)
    _check_claim(model, claim, arrival)
    _check_mark(model, claim, arrival, model.known_ms(claim, offset))
    _check_limits(model, claim, arrival)
    _check_keys(model, claim, arrival)
    if claim.in_log_order:
        note_passed(model, arrival)
        claim.back.discard(offset)
    else:
        note_order(model, arrival)
        if claim.doubted.pop(offset, None) == arrival.due_ms:
            claim.kept[offset] = arrival.due_ms
    claim.waits.pop(offset, None)
    if offset not in claim.acked:  # on the way to us when it was
        slot = slot_of(arrival.key)
        hand = Hand(arrival.inbox, arrival.until_ms, slot, arrival.attempt, arrival.now_ms)
        claim.hands[offset] = hand
    claim.seen[offset] = arrival.crashes


def _check_claim(model: Model, claim: Claim, arrival: Arrival) -> None:
    """It is this subscription's, at this time, and not done (invariants 2, 3, 5)."""
    offset, due_ms = arrival.offset, arrival.due_ms
    if not claim.in_log_order:
        assert due_ms <= arrival.now_ms, f"{offset} is early"
        # Of what is gone from the log any of its keys may be left in the index.
        times_ms = {model.due_ms(claim, offset), claim.doubted.get(offset)}
        assert due_ms in times_ms or offset in claim.lucky, f"{offset} was not due then"
    assert claim.covers(offset, due_ms), f"{offset} was none of its business"
    assert offset not in claim.gone, f"{offset} was forgotten"
    assert claim.acked.get(offset, arrival.moment) >= arrival.moment, f"{offset} was acknowledged"
    assert offset not in claim.buried.values(), f"{offset} was buried"
    assert offset not in claim.dropped, f"{offset} was dropped"
    hand = claim.hands.get(offset)
    assert hand is None or hand.until_ms <= arrival.now_ms, f"{offset} is in two hands"
    wait = claim.waits.get(offset)
    assert wait is None or wait.until_ms <= arrival.now_ms, f"{offset} did not wait"


def _check_mark(model: Model, claim: Claim, arrival: Arrival, first_ms: int) -> None:
    """What comes again says so, and which attempt it is (invariant 6, V4)."""
    before = claim.fired.pop(arrival.offset, 0)
    assert arrival.attempt > before, f"{arrival.offset} was handed out {before} times already"
    crashes = claim.seen.get(arrival.offset)
    if crashes is not None:
        # The clock was set back, and then a broker died. Here leases are never renewed, so
        # nobody has noted how late it had been: see test_lease.py.
        unknown = crashes < arrival.crashes and first_ms > model.crashes[arrival.crashes - 1]
        assert arrival.redelivered or unknown, f"{arrival.offset} came again, unmarked"
    elif arrival.redelivered:
        # Perhaps falsely, after a crash or from an inbox that was closed at that moment.
        doubtful_ms = max(model.doubtful_ms, claim.left_ms)
        assert arrival.attempt > 1 or first_ms <= doubtful_ms, f"{arrival.offset} was new"


def _check_limits(model: Model, claim: Claim, arrival: Arrival) -> None:
    """Time to live, pauses, rate, and how many are in hands."""
    policy, topic = arrival.policy, arrival.topic_policy
    now_ms, ttl_ms = arrival.now_ms, 0 if topic is None else topic.get("ttl_ms", 0)
    assert not ttl_ms or now_ms < arrival.due_ms + ttl_ms, f"{arrival.offset} has expired"
    for one in (policy, topic):
        assert one is None or now_ms >= one.get("paused_until_ms", 0), "it is paused"
    if policy is None:
        return
    if rate := policy.get("max_rate", 0):
        claim.passed_ms.append(now_ms)
        for row, at_ms in enumerate(claim.passed_ms):
            most = rate * ((now_ms - at_ms) / 1000 + 0.1) + 1
            assert len(claim.passed_ms) - row <= most, "faster than the rate"
    if most := policy.get("max_in_flight", 0):
        # An acknowledgement takes a message out of the hands at once, and is durable later.
        out = {o for o, hand in claim.hands.items() if hand.until_ms > now_ms} - claim.perhaps
        assert len(out | {arrival.offset}) <= most, "too many are in flight"


def _check_keys(model: Model, claim: Claim, arrival: Arrival) -> None:
    """Of a key one is out at a time, and in retry it holds up the others."""
    if isinstance(arrival.key_range, tuple) and arrival.key:
        first, last = arrival.key_range
        assert first <= escapement.slot_of(arrival.key) <= last, "of another's range"
    slot, whole = arrival.slot, (arrival.policy or {}).get("order") == "topic"
    if slot is None:
        return
    holding = dict(claim.hands)
    # What waits for another attempt may be dropped.
    may_go = any(quota != NO_QUOTA for quota in model.quotas + model.quotas_now())
    if (arrival.policy or {}).get("on_retry", "hold") == "hold" and not may_go:
        waits = {o: w for o, w in claim.waits.items() if not _expires(model, claim, arrival, o)}
        holding |= waits
    for offset, hand in holding.items():
        if offset in claim.perhaps or offset in claim.dropped:
            continue  # it may be over
        if offset != arrival.offset and hand.until_ms > arrival.now_ms:
            assert not whole, f"{offset} is out already"
            assert hand.slot != slot, f"{offset} of this key is out already"


def _expires(model: Model, claim: Claim, arrival: Arrival, offset: int) -> bool:
    """Whether what waits for another attempt is over by now: it waits no longer than it lives."""
    if arrival.topic_policy is None:
        return True
    ttl_ms = arrival.topic_policy.get("ttl_ms", 0)
    return bool(ttl_ms) and model.due_ms(claim, offset) + ttl_ms <= arrival.now_ms


def check_order(model: Model, arrival: Arrival) -> None:
    """Of what was never handed out, what was clearly due earlier has gone before.

    Asked once all that came at the same moment is known.
    """
    claim = model.claims[arrival.name]
    if arrival.attempt > 1 or arrival.priority != 50 or arrival.policy is None:
        return
    if claim.in_log_order:
        return
    if arrival.now_ms < model.high_ms or model.stored[arrival.offset] is None:
        return
    if arrival.offset < claim.ordered_from:
        return
    slot = arrival.slot
    if arrival.ranged and not slot:
        return  # the other may be of nobody's range
    if slot is None and arrival.policy.get("order", "any") != "any":
        return
    for offset in range(claim.ordered_from, model.end):
        other = model.stored[offset]
        if other is None or other.priority != 50 or offset in claim.seen:
            continue
        key = (model.due_ms(claim, offset), offset)
        ready_ms = max(key[0], other.since_ms) + LATE_MS
        if key >= (arrival.due_ms, arrival.offset) or ready_ms > arrival.now_ms:
            continue
        if not claim.covers(offset, key[0]) or offset in claim.perhaps | claim.done():
            continue
        # Of what waits for its key only those of the same key are compared.
        behind = slot is not None and slot != 0 and slot_of(other.key) != slot
        assert behind, f"{offset} should have gone before {arrival.offset}"
