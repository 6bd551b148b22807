"""The order between priorities: what lay ready goes before whatever ranks behind it (V5).

A rank is ``due + (priority - 50) * priority_ageing``. The order is promised for what a band of
priorities has read, which is known here between two steps: whoever has a consumer then has read
on in each band until it had caught up or more than half of a full ready. What a step hands out
for the first time may then pass nothing that lay ready when the step began. What waited out a
back-off has its own share, and is not compared (Q6).
"""

from __future__ import annotations

from random_workloads.arrival import Arrival
from random_workloads.model import LATE_MS, Expectation, Model

READY_MESSAGES = 12
# Reading goes on while half of that is free.
_CERTAIN = READY_MESSAGES // 2 + 1
AGEING_MS = 1000  # where the policy says nothing


def see_ready(model: Model, expectation: Expectation, now_ms: int, *, keeps_order: bool) -> None:
    """Remember what certainly lies ready, of a subscription that has consumers.

    Where an order is promised, what is due is ready whatever the tick. But once ready was full
    there, some keys may be left out of it until it is empty.
    """
    expectation.heads = {}
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
        if offset in expectation.seen:
            tried[message.priority] = tried.get(message.priority, 0) + 1
        else:
            bands.setdefault(message.priority, []).append((due_ms, offset))
    due = sum(tried.values()) + sum(len(keys) for keys in bands.values())
    expectation.crowded = due > (0 if expectation.crowded else _CERTAIN)
    if keeps_order and expectation.crowded:
        return
    for priority, keys in bands.items():
        for due_ms, offset in sorted(keys)[: max(_CERTAIN - tried.get(priority, 0), 0)]:
            message = model.stored[offset]
            assert message is not None
            known = (
                offset >= expectation.ordered_from
                and offset not in expectation.lucky | expectation.perhaps
            )
            if known and max(due_ms, message.since_ms) + late_ms <= now_ms:
                expectation.heads[offset] = due_ms


def check_ranks(model: Model, arrival: Arrival) -> None:
    """Asked once all that came in the same step is known."""
    expectation, message = model.expectations[arrival.name], model.stored[arrival.offset]
    if arrival.attempt > 1 or arrival.policy is None or message is None or arrival.ranged:
        return
    if arrival.now_ms < model.high_ms or arrival.policy.get("order", "any") != "any":
        return
    ageing_ms = arrival.policy.get("priority_ageing_ms", AGEING_MS)
    rank = arrival.due_ms + (arrival.priority - 50) * ageing_ms, arrival.offset
    for offset, due_ms in expectation.heads.items():
        other = model.stored[offset]
        assert other is not None
        if offset in expectation.seen.keys() | expectation.perhaps | expectation.done():
            continue
        if not expectation.covers(offset, due_ms) or model.due_ms(expectation, offset) != due_ms:
            continue
        before = due_ms + (other.priority - 50) * ageing_ms, offset
        assert before >= rank, f"{offset} ranks before {arrival.offset}"
