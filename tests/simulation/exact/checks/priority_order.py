"""The check of the order between priorities (V5).

A rank is ``due + (priority - 50) * priority_ageing``. The broker promises the order for messages
that a band of priorities has read into the ready queue. The model knows some of them between two
steps: a subscription with a consumer has then read each band until it was exhausted, or until more
than half of the ready queue was full. A first delivery of the next step must not pass a ready
message of lower rank. Retries after a back-off have their own share and are not compared (Q6).
"""

from __future__ import annotations

from simulation.exact.arrival import Arrival
from simulation.exact.model import LATE_MS, Expectation, Model

READY_MESSAGES = 12
# A band reads more while half of the ready queue is free.
_CERTAIN = READY_MESSAGES // 2 + 1
AGEING_MS = 1000  # the default of the policy


def see_ready(model: Model, expectation: Expectation, now_ms: int, *, keeps_order: bool) -> None:
    """Note the messages that certainly are in the ready queue of a subscription with consumers.

    With an order of keys, due messages are ready whatever the tick. But when the ready queue was
    full, it may lack some keys until it is empty.
    """
    expectation.ready = {}
    late_ms = 0 if keeps_order else LATE_MS
    if now_ms < model.high_ms:
        return
    bands: dict[int, list[tuple[int, int]]] = {}
    tried: dict[int, int] = {}
    for offset in model.wanted(expectation) - expectation.done():
        message, due_ms = model.stored[offset], model.due_ms(expectation, offset)
        assert message is not None
        if due_ms > now_ms:
            continue
        if offset in expectation.delivered:
            tried[message.priority] = tried.get(message.priority, 0) + 1
        else:
            bands.setdefault(message.priority, []).append((due_ms, offset))
    due = sum(tried.values()) + sum(len(keys) for keys in bands.values())
    expectation.ready_may_be_full = due > (0 if expectation.ready_may_be_full else _CERTAIN)
    if keeps_order and expectation.ready_may_be_full:
        return
    for priority, keys in bands.items():
        for due_ms, offset in sorted(keys)[: max(_CERTAIN - tried.get(priority, 0), 0)]:
            message = model.stored[offset]
            assert message is not None
            known = (
                offset >= expectation.ordered_from
                and offset not in expectation.optional | expectation.maybe_done
            )
            if known and max(due_ms, message.since_ms) + late_ms <= now_ms:
                expectation.ready[offset] = due_ms


def check_ranks(model: Model, arrival: Arrival) -> None:
    """Check that an arrival has not passed a ready message of lower rank.

    Call it when all arrivals of the step are in the model.
    """
    expectation, message = model.expectations[arrival.name], model.stored[arrival.offset]
    if arrival.attempt > 1 or arrival.policy is None or message is None or arrival.ranged:
        return
    if arrival.now_ms < model.high_ms or arrival.policy.get("order", "any") != "any":
        return
    ageing_ms = arrival.policy.get("priority_ageing_ms", AGEING_MS)
    rank = arrival.due_ms + (arrival.priority - 50) * ageing_ms, arrival.offset
    for offset, due_ms in expectation.ready.items():
        other = model.stored[offset]
        assert other is not None
        if offset in expectation.delivered.keys() | expectation.maybe_done | expectation.done():
            continue
        if not expectation.must_get(offset, due_ms) or model.due_ms(expectation, offset) != due_ms:
            continue
        before = due_ms + (other.priority - 50) * ageing_ms, offset
        assert before >= rank, f"{offset} ranks before {arrival.offset}"
