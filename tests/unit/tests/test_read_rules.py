"""The rules about reads find answers that are older than what was confirmed before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from escapement import AmendStatus
from histories.history import Amendment, Arrival, Consumer, History, Message, Sent, Way
from histories.reads import Read, Shown, wrong_count, wrong_page, wrong_states

T0_MS = 1_000_000
READ = Read("peek", "t", T0_MS + 10_000, T0_MS + 11_000)
PENDING = {"a": "pending", "b": "pending", "l": "waiting"}


class StoppedClock:
    def now_s(self) -> float:
        return 0.0

    def now_ms(self) -> int:
        return T0_MS


class Cable:
    ended_s: float | None = None


class Told:
    """A history of two messages that wait for two shared subscriptions, and the answers to reads.

    The answers are right as long as nothing else happens.
    """

    def __init__(self) -> None:
        self.history = history = History(StoppedClock())
        history.topics = {"t": ["a", "b", "l"], "u": []}
        history.kinds = {"a": "shared", "b": "shared", "l": "log"}
        history.sending_s = 1.0
        self.shown = [self._publish(offset) for offset in (5, 6)]
        self.states = dict(PENDING)

    def _publish(self, offset: int) -> Shown:
        message = self.history.publish("t", "", T0_MS + 100_000)
        self.history.confirm(message, offset)
        return Shown(message.number, offset, T0_MS + 100_000)

    @property
    def message(self) -> Message:
        return self.history.messages[0]

    def publish_another(self) -> None:
        self._publish(7)

    def amend(self, due_s: float | None, answered_s: float = 2, *handed: str) -> None:
        """Cancel or reschedule the first message."""
        due_ms = None if due_s is None else T0_MS + round(1000 * due_s)
        times_ms = T0_MS + 1000, T0_MS + round(1000 * answered_s)
        self.message.amendments.append(
            Amendment(due_ms, *times_ms, True, frozenset(handed), True, AmendStatus.DONE)
        )

    def finish(self, *names: str, acked_s: float = 5.0) -> None:
        """Deliver the first message, which was due at once, and acknowledge it."""
        self.message.earliest_ms = T0_MS
        for name in names:
            way = Way(Cable(), 1, Sent(2.0, T0_MS, 1))
            self.history.arrive(
                Arrival(name, 0, 5, T0_MS, "", False, 2.0, T0_MS, way, Consumer(name))
            )
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
    told.publish_another()


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
    told.publish_another()
    told.history.messages[-1].confirmed_ms = T0_MS + 10_500


def rescheduled_to_an_earlier_time(told: Told) -> None:
    told.amend(50)
    told.shown[0] = told.shown[0]._replace(due_ms=T0_MS + 50_000)


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
