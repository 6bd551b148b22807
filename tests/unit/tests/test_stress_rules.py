"""The rules of the stress test find each broken promise, and nothing in a clean history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stress.history import History
from stress.rules import unshown, violations

T0_MS = 1_000_000


def clean() -> History:
    """Return a history of three messages that two subscriptions finished.

    Message 2 (offset 12) is poison: subscription ``a`` has its dead letter 5, which is redriven
    as offset 13.
    """
    history = History({"t": ["a", "b"]}, ordered=frozenset({"b"}))
    for offset in (10, 11, 12):
        number = history.publish("t", T0_MS, poison=offset == 12)
        history.confirm(number, offset)
        history.messages[number].settled_ms = T0_MS - 10_000
    for name in ("a", "b"):
        for number, offset in ((0, 10), (1, 11), (2, 12), (2, 13)):
            course = history.deliver(
                name, number, offset, T0_MS, "k", False, T0_MS + offset, T0_MS + offset
            )
            course.ack_sent = (name, offset) != ("a", 12)
    history.list_dead_letters("a", {5: (2, 12)})
    history.dead_letters["a"].asked.add(5)
    history.list_dead_letters("a", {})
    return history


def lose_first_delivery(history: History) -> None:
    del history.courses["a"][10]


def lose_acknowledgement_and_dead_letter(history: History) -> None:
    history.dead_letters["a"].seen.clear()


def lose_redriven_copy(history: History) -> None:
    del history.courses["a"][13], history.courses["b"][13]


def lose_redriven_copy_of_one(history: History) -> None:
    del history.courses["b"][13]


def lose_dead_letter_without_request(history: History) -> None:
    history.dead_letters["a"].asked.clear()


def dead_letter_twice(history: History) -> None:
    history.list_dead_letters("a", {6: (2, 12)})


def store_twice(history: History) -> None:
    history.deliver("a", 1, 14, T0_MS, "k", False, T0_MS + 20, T0_MS + 20).ack_sent = True


def deliver_early(history: History) -> None:
    history.messages[0].earliest_ms = T0_MS + 60_000


def deliver_before_moved_time(history: History) -> None:
    history.messages[0].moved = (T0_MS + 60_000, frozenset({"b"}))


def deliver_after_durable_ack(history: History) -> None:
    history.courses["a"][10].durable_ms = T0_MS
    history.deliver("a", 0, 10, T0_MS, "k", True, T0_MS + 60_000, T0_MS + 60_000)


def redeliver_unmarked(history: History) -> None:
    history.deliver("a", 0, 10, T0_MS, "k", False, T0_MS + 20, T0_MS + 20)


def redeliver_without_a_cause(history: History) -> None:
    history.deliver("a", 0, 10, T0_MS, "k", True, T0_MS + 20, T0_MS + 20)
    # One trouble ended long before, and one began afterwards.
    history.troubles = [(T0_MS - 9_000, T0_MS - 8_000), (T0_MS + 9_000, T0_MS + 9_001)]


def test_redelivery_after_a_return_or_a_trouble_is_explained() -> None:
    """Invariant 6."""
    history = clean()
    history.deliver("a", 0, 10, T0_MS, "k", True, T0_MS + 20, T0_MS + 20)
    history.courses["a"][10].returned = 1
    history.deliver("a", 1, 11, T0_MS, "k", True, T0_MS + 20, T0_MS + 20)
    history.troubles = [(T0_MS + 12, T0_MS + 15)]
    assert list(violations(history)) == []


def deliver_cancelled_message(history: History) -> None:
    history.messages[0].cancelled_but_for = frozenset({"b"})


def deliver_out_of_order(history: History) -> None:
    history.arrivals["b"].reverse()


def test_message_confirmed_after_a_later_one_was_delivered_may_follow_it() -> None:
    """Q9: the broker orders durable messages only."""
    history = clean()
    deliver_out_of_order(history)
    for message in history.messages.values():
        message.settled_ms = T0_MS + 60_000
    assert list(violations(history)) == []


def dead_letter_unread(history: History) -> None:
    """Lose the deliveries of message 2 to ``a``, with one trouble less than those need."""
    history.messages[2].earliest_ms = T0_MS
    history.troubles = [(T0_MS - 1, T0_MS - 1), (T0_MS + 1, T0_MS + 1)]
    del history.courses["a"][12]


def test_message_may_die_unread_after_as_many_troubles_as_deliveries() -> None:
    """P6: a delivery counts when it is sent, and a kill loses unread data."""
    history = clean()
    dead_letter_unread(history)
    history.troubles.append((T0_MS + 2, T0_MS + 2))
    assert list(violations(history)) == []


def test_delivery_before_a_durable_ack_may_wait_in_the_inbox() -> None:
    """V2: the delivery counts from when the inbox was empty."""
    history = clean()
    history.courses["a"][10].durable_ms = T0_MS
    history.courses["a"][10].returned = 1
    history.deliver("a", 0, 10, T0_MS, "k", True, T0_MS, T0_MS + 60_000)
    assert list(violations(history)) == []


def test_clean_history_breaks_no_promise() -> None:
    """P6."""
    assert list(violations(clean())) == []


@pytest.mark.parametrize(
    ("break_it", "kind"),
    [
        (lose_first_delivery, "lost"),
        (lose_acknowledgement_and_dead_letter, "lost"),
        (lose_redriven_copy, "lost"),
        (lose_redriven_copy_of_one, "lost"),
        (lose_dead_letter_without_request, "lost"),
        (dead_letter_unread, "unknown"),
        (dead_letter_twice, "doubled"),
        (store_twice, "doubled"),
        (deliver_early, "early"),
        (deliver_before_moved_time, "early"),
        (deliver_after_durable_ack, "again"),
        (redeliver_unmarked, "unmarked"),
        (redeliver_without_a_cause, "repeated"),
        (deliver_cancelled_message, "cancelled"),
        (deliver_out_of_order, "order"),
    ],
)
def test_broken_promise_is_found(break_it: Callable[[History], None], kind: str) -> None:
    """P6, Q9, B1: the rules name the kind of the one fault."""
    history = clean()
    break_it(history)
    found = list(violations(history))
    assert found
    assert any(line.startswith(f"{kind}: ") for line in found), found


def test_what_never_happened_in_a_run_is_named() -> None:
    """A run without it proves nothing about it. Other counts may be zero."""
    counts = dict.fromkeys(unshown({}, ["SIGKILL", "damaged index"]), 1)
    assert {"published", "redriven", "SIGKILL", "damaged index"} <= counts.keys()
    assert unshown(counts, ["SIGKILL", "damaged index"]) == []
    del counts["redriven"]
    counts |= {"damaged index": 0, "publishes without a receipt": 0}
    assert unshown(counts, ["SIGKILL", "damaged index"]) == ["redriven", "damaged index"]
