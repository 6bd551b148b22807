"""The rule about changes of one message by several clients finds answers that fit no order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from escapement import AmendStatus
from histories.changes import inexplicable
from histories.history import NEVER_MS, Amendment
from support.told_history import ToldHistory, ms

CANCELLED, DELIVERED, DONE = AmendStatus.CANCELLED, AmendStatus.DELIVERED, AmendStatus.DONE


class Told(ToldHistory):
    """A history of one message, which is due at 100 s."""

    def __init__(self) -> None:
        super().__init__()
        self.publish(offset=7, due_s=100)

    def ask(
        self,
        called_s: float,
        answered_s: float | None,
        due_s: float | None,
        status: AmendStatus | None,
        *handed: str,
        once: bool = True,
    ) -> None:
        """Note a cancel, or a reschedule to ``due_s``, and its answer."""
        self.history.messages[0].amendments.append(
            Amendment(
                None if due_s is None else ms(due_s),
                ms(called_s),
                NEVER_MS if answered_s is None else ms(answered_s),
                None if status is None else status is DONE,
                frozenset(handed),
                once,
                status,
            )
        )


def reschedule_after_a_cancel(told: Told) -> None:
    told.ask(1, 2, None, DONE)
    told.ask(3, 4, 50, DONE)


def cancels_that_name_different_subscriptions(told: Told) -> None:
    told.ask(1, 2, None, DONE, "l")
    told.ask(1, 2, None, DONE, "l", "a")


def cancelled_by_nobody(told: Told) -> None:
    told.ask(1, 2, 50, CANCELLED)
    told.ask(3, 4, None, DONE)


def stored_and_unknown(told: Told) -> None:
    told.ask(1, 2, None, AmendStatus.UNKNOWN)


def delivered_and_then_not(told: Told) -> None:
    told.ask(1, 2, None, DONE, "a")
    told.ask(1, 2, 50, DONE, "b")


def changed_after_all_received_it(told: Told) -> None:
    told.ask(101, 102, 500, DELIVERED)
    told.ask(103, 104, 500, DONE, "b")


def changed_for_one_that_had_received_it(told: Told) -> None:
    told.deliver(0, "a", 100, 100)
    told.ask(101, 102, 500, DONE)


def delivered_after_a_cancel(told: Told) -> None:
    told.ask(1, 2, None, DONE, "l")
    told.deliver(0, "a", 100, 100)


def delivered_after_a_cancel_in_a_race(told: Told) -> None:
    told.ask(1, 3, None, DONE)
    told.ask(2, 4, 50, DONE)
    told.deliver(0, "a", 50, 50)


def delivered_at_the_time_before_the_last_change(told: Told) -> None:
    told.ask(1, 2, 50, DONE)
    told.ask(3, 4, 80, DONE)
    told.deliver(0, "a", 81, 50)


def delivered_later_than_it_was_run_now(told: Told) -> None:
    told.ask(1, 2, 1, DONE)
    told.deliver(0, "a", 100, 100)


def delivered_at_the_time_of_the_earlier_one(told: Told) -> None:
    """Each answer fits, and so does the delivery, but not all three."""
    told.ask(1, 9, 50, DONE, "l")
    told.ask(1, 9, 80, DONE)
    told.deliver(0, "a", 81, 80)


@pytest.mark.parametrize(
    "happens",
    [
        reschedule_after_a_cancel,
        cancels_that_name_different_subscriptions,
        cancelled_by_nobody,
        stored_and_unknown,
        delivered_and_then_not,
        changed_after_all_received_it,
        changed_for_one_that_had_received_it,
        delivered_after_a_cancel,
        delivered_after_a_cancel_in_a_race,
        delivered_at_the_time_before_the_last_change,
        delivered_later_than_it_was_run_now,
        delivered_at_the_time_of_the_earlier_one,
    ],
)
def test_answers_without_an_order_are_found(happens: Callable[[Told], None]) -> None:
    """P6: a confirmed change is decided once, and for all clients."""
    told = Told()
    happens(told)
    (found,) = inexplicable(told.history)
    assert found.startswith("changes (10): no order explains")


def two_cancels(told: Told) -> None:
    """Cancelling a cancelled message changes nothing, and is confirmed too."""
    told.ask(1, 3, None, DONE, "l")
    told.ask(2, 4, None, DONE, "l")
    told.ask(5, 6, 50, CANCELLED)


def reschedule_that_was_before_a_cancel(told: Told) -> None:
    """The later answer may be that of the earlier change."""
    told.ask(1, 3, None, DONE)
    told.ask(2, 4, 50, DONE)


def either_of_two_reschedules(told: Told) -> None:
    told.ask(1, 4, 50, DONE)
    told.ask(2, 3, 80, DONE, "l")
    told.deliver(0, "a", 81, 80)


def request_that_takes_effect_late(told: Told) -> None:
    told.ask(1, None, 50, None)
    told.ask(2, 3, 80, DONE)
    told.deliver(0, "a", 81, 50)


def cancel_that_takes_effect_without_an_answer(told: Told) -> None:
    told.ask(1, None, None, None)
    told.ask(2, 3, 50, CANCELLED)


def reschedule_that_was_sent_twice(told: Told) -> None:
    """The first time made the message due, and it was delivered before the second."""
    told.deliver(0, "a", 60, 50)
    told.ask(1, 70, 50, DONE, "a", once=False)


def cancel_for_the_others(told: Told) -> None:
    told.deliver(0, "a", 100, 100)
    told.ask(99, 101, 300, DONE, "a")
    told.ask(102, 103, None, DONE, "a", "l")
    told.ask(104, 105, None, DONE, "a", "l")


@pytest.mark.parametrize(
    "happens",
    [
        two_cancels,
        reschedule_that_was_before_a_cancel,
        either_of_two_reschedules,
        request_that_takes_effect_late,
        cancel_that_takes_effect_without_an_answer,
        reschedule_that_was_sent_twice,
        cancel_for_the_others,
    ],
)
def test_answers_with_an_order_are_allowed(happens: Callable[[Told], None]) -> None:
    """P6: changes at the same time may take effect in either order."""
    told = Told()
    happens(told)
    assert list(inexplicable(told.history)) == []
