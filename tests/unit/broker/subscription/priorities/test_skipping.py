"""Ready is full of messages of busy keys: the subscription skips them, and reads them again."""

from __future__ import annotations

from escapement.broker.subscription.priorities.skipping import STUCK_MS
from support.messages.keyed_subscriptions import Model
from support.messages.shared_subscriptions import subscription


def test_many_messages_of_busy_keys_delay_other_keys_only_briefly() -> None:
    """V16: ready is repeatedly full of busy keys, and the scan continues after them."""
    made = subscription(ready_messages=40)
    model = Model(made, "any", False)
    model.set_order("key")
    for _ in range(30):
        model.publish([0, 1, 2] * 5)
    model.publish([7])
    model.publish([0, 7, -1])
    assert model.deliver() == 3
    model.sleep(STUCK_MS - 1)
    assert model.deliver() == 0
    wake_ms = made.next_wake_ms()
    assert wake_ms is not None
    assert wake_ms <= model.now_ms + 10
    model.sleep(1)
    assert model.deliver() == 2, "one message of another key, and one without a key"
    assert sorted(model.slots[offset] for offset in model.in_flight) == [-1, 0, 1, 2, 7]
    assert made.ready_count <= 40
    # Skipped messages are delivered in order, after the other messages of their key.
    rounds = 0
    while len(model.done) < len(model.slots):
        rounds += 1
        while model.in_flight:
            model.settle(0, "ack")
        if not model.deliver():
            model.sleep(STUCK_MS)
    assert rounds < 600


def test_freed_skipped_key_waits_a_moment_for_other_skipped_keys() -> None:
    """V16: the scan restarts for many freed keys at once, and for a single one after a moment."""
    made = subscription(ready_messages=8)
    model = Model(made, "any", False)
    model.set_order("key")
    for _ in range(8):
        model.publish([*range(8)])
    assert model.deliver() == 8
    assert model.deliver() == 0
    model.sleep(STUCK_MS)
    assert model.deliver() == 0
    assert made.ready_count == 0, "ready keeps no message of a busy key"
    model.settle(0, "ack")
    assert model.deliver() == 0
    model.sleep(STUCK_MS - 1)
    assert model.deliver() == 0
    model.sleep(1)
    assert model.deliver() == 1
    # All messages of that key fill ready, so the others may wait for another moment.
    for _ in range(3):
        model.settle(0, "ack")
    handed = model.deliver()
    model.sleep(STUCK_MS)
    assert handed + model.deliver() == 3


def test_subscription_with_full_ready_wakes_to_skip_busy_keys() -> None:
    """Invariant 4: nothing else may ever happen in this topic, so it must wake itself."""
    made = subscription(ready_messages=10)
    model = Model(made, "any", False)
    model.set_order("key")
    model.publish([0] * 30 + [1])
    assert model.deliver() == 1
    for _ in range(3):
        wake_ms = made.next_wake_ms()
        assert wake_ms is not None
        model.now_ms = max(model.now_ms, wake_ms)
        made.advance(model.now_ms)
        if model.deliver():
            break
    assert {model.slots[offset] for offset in model.in_flight} == {0, 1}
