"""The rules about reads find answers that are older than confirmed changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from escapement import AmendStatus
from histories.history import Amendment, Message
from histories.reads import Read, Shown, wrong_count, wrong_page, wrong_states
from support.told_history import ToldHistory, ms

READ = Read("peek", "t", ms(10), ms(11))


class Told(ToldHistory):
    """A history of two messages that wait, and the answers to reads.

    The answers are right as long as nothing else happens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shown = [Shown(self.publish(offset, 100), offset, ms(100)) for offset in (5, 6)]
        self.states = {"a": "pending", "b": "pending", "l": "waiting"}

    @property
    def message(self) -> Message:
        return self.history.messages[0]

    def amend(self, due_s: float | None, answered_s: float = 2, *handed: str) -> None:
        """Cancel or reschedule the first message."""
        due_ms = None if due_s is None else ms(due_s)
        names = frozenset(handed)
        self.message.amendments.append(
            Amendment(due_ms, ms(1), ms(answered_s), True, names, True, AmendStatus.DONE)
        )

    def finish(self, *names: str, acked_s: float = 5.0) -> None:
        """Deliver the first message, which was due at once, and acknowledge it."""
        self.message.earliest_ms = ms(0)
        for name in names:
            self.deliver(0, name, 2, 0)
            self.history.acked_s[name, 5] = acked_s

    def found(self) -> dict[str, list[str]]:
        """Return the violations of each kind of answer."""
        return {
            "page": list(wrong_page(self.history, READ, self.shown)),
            "count": list(wrong_count(self.history, READ, len(self.shown))),
            "states": list(wrong_states(self.history, READ, self.message, self.states)),
        }


def cancelled_before(told: Told) -> None:
    told.amend(None)


def cancelled_for_one_and_acknowledged_by_the_other(told: Told) -> None:
    told.amend(None, 2, "a")
    told.finish("a")


def acknowledged_before(told: Told) -> None:
    told.finish("a", "b")


def rescheduled_before(told: Told) -> None:
    told.amend(200)


def published_before(told: Told) -> None:
    told.publish(offset=7, due_s=100)


def delivered_before(told: Told) -> None:
    told.finish("a", acked_s=20.0)


def of_another_topic(told: Told) -> None:
    told.message.topic = "u"


@pytest.mark.parametrize(
    ("happens", "kinds"),
    [
        (cancelled_before, {"page", "count", "states"}),
        (cancelled_for_one_and_acknowledged_by_the_other, {"page", "count", "states"}),
        (acknowledged_before, {"page", "count", "states"}),
        (rescheduled_before, {"page"}),
        (published_before, {"page", "count"}),
        (delivered_before, {"states"}),
    ],
)
def test_stale_answer_is_found(happens: Callable[[Told], None], kinds: set[str]) -> None:
    """B8: a broker that has lost its lease does not answer with an earlier state."""
    told = Told()
    happens(told)
    found = told.found()
    assert {kind for kind, lines in found.items() if lines} == kinds
    assert all(line.startswith("stale (8):") for lines in found.values() for line in lines)


def test_message_of_another_topic_is_found() -> None:
    """B8: an answer names the topic that was asked for."""
    told = Told()
    of_another_topic(told)
    assert len(list(wrong_page(told.history, READ, told.shown))) == 1


def cancelled_at_the_same_time(told: Told) -> None:
    told.amend(None, 10.5)
    told.shown = told.shown[1:]


def still_shown_while_it_is_cancelled(told: Told) -> None:
    told.amend(None, 10.5)


def cancelled_for_one(told: Told) -> None:
    told.amend(None, 2, "a")
    told.states |= {"a": "ready", "b": "cancelled", "l": "cancelled"}


def acknowledged_at_the_same_time(told: Told) -> None:
    told.finish("a", "b", acked_s=10.5)
    told.shown = told.shown[1:]
    told.states |= {"a": "acknowledged", "b": "in flight"}


def published_at_the_same_time(told: Told) -> None:
    told.publish(offset=7, due_s=100)
    told.history.messages[-1].confirmed_ms = ms(10.5)


def rescheduled_to_an_earlier_time(told: Told) -> None:
    told.amend(50)
    told.shown[0] = told.shown[0]._replace(due_ms=ms(50))


@pytest.mark.parametrize(
    "happens",
    [
        cancelled_at_the_same_time,
        still_shown_while_it_is_cancelled,
        cancelled_for_one,
        acknowledged_at_the_same_time,
        published_at_the_same_time,
        rescheduled_to_an_earlier_time,
        lambda told: None,
    ],
)
def test_answer_that_may_be_right_is_allowed(happens: Callable[[Told], None]) -> None:
    """B8: what changes during a read may be in its answer or not."""
    told = Told()
    happens(told)
    assert told.found() == {"page": [], "count": [], "states": []}
