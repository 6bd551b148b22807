"""The answers about changes of one message are those of some order of the changes (invariant 10).

Clients may change a message at the same time, and each waits for its own answer. The broker
promises that its answers are *linearizable*: there is one order of all changes and first deliveries
that explains each answer. In this order, a change whose answer came before another one was
requested is the earlier one. The rule searches for such an order, message by message.

A delivery may have been decided at any time before it was sent. A change without an answer may
take effect at any later time, or never. So may a request that was sent twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from escapement import AmendStatus
from histories.history import NEVER_MS, Amendment, Arrival, History, Message, in_order


class _Step(NamedTuple):
    """A change that was answered, or the first delivery to a subscription."""

    called_ms: int
    answered_ms: int
    what: Amendment | Arrival


class _State(NamedTuple):
    """A message after some steps.

    ``received`` names the subscriptions that have received it. ``moves`` has the change that
    decides the due time for a subscription, by the number of its step; no entry: its producer does.
    """

    cancelled: bool
    received: frozenset[str]
    moves: frozenset[tuple[str, int]]


def inexplicable(history: History) -> Iterator[str]:
    """Find messages whose answers and first deliveries no order explains."""
    for message in history.messages:
        if any(one.status is not None for one in message.amendments):
            search = _Search(history, message)
            if not search.succeeds():
                yield (
                    f"changes (10): no order explains the answers about message {message.number}"
                    f" (offset {message.offset}): {message.amendments}; and its first deliveries:"
                    f" {[f'{one.subscription} at {one.sent_s:.3f} s' for one in search.firsts]}"
                )


@dataclass
class _Search:
    """The search for an order of the steps of one message."""

    history: History
    message: Message

    def __post_init__(self) -> None:
        history, message = self.history, self.message
        self._names = frozenset(history.topics[message.topic])
        self._moved = frozenset(one for one in self._names if history.kinds[one] != "log")
        courses = [history.courses.get((name, message.offset)) for name in self._names]
        self.firsts = in_order(in_order(course)[0] for course in courses if course)
        # Requests that may take effect whenever they fit
        self._loose = [one for one in message.amendments if one.done is None or not one.once]
        steps = [
            _Step(one.called_ms, one.answered_ms, one)
            for one in message.amendments
            if one.done is not None
        ]
        steps += [_Step(0, history.unix_ms(one.sent_s), one) for one in self.firsts]
        self._steps = sorted(steps, key=lambda step: step.answered_ms)
        self._failed: set[tuple[frozenset[int], _State]] = set()

    def succeeds(self) -> bool:
        """Return whether there is an order."""
        state = _State(False, frozenset(), frozenset())
        return self._finishes(frozenset(range(len(self._steps))), state)

    def _finishes(self, left: frozenset[int], state: _State) -> bool:
        """Return whether the steps that are left can follow in some order."""
        if not left:
            return True
        if (left, state) in self._failed:
            return False
        until_ms = min(self._steps[number].answered_ms for number in left)
        for number in sorted(left):
            if self._steps[number].called_ms <= until_ms:
                following = self._after(state, number)
                if following is not None and self._finishes(left - {number}, following):
                    return True
        self._failed.add((left, state))
        return False

    def _after(self, state: _State, number: int) -> _State | None:
        """Return the state after a step; None if the step does not fit."""
        what = self._steps[number].what
        if isinstance(what, Arrival):
            return self._delivered(state, what)
        received = what.handed & self._names
        status = what.status
        if status is None:
            status = AmendStatus.DONE if what.done else AmendStatus.OVER
        if status is AmendStatus.UNKNOWN:
            return None  # it has an offset, so it is stored
        if status is AmendStatus.CANCELLED and what.due_ms is not None:
            return state if state.cancelled or self._may_be_cancelled(what.answered_ms) else None
        if status is AmendStatus.DELIVERED:
            all_names = self._names if what.due_ms is None else self._moved
            return None if state.cancelled else self._received(state, all_names)
        if status is AmendStatus.OVER:
            return state
        if state.cancelled:
            # Nothing changes any more.
            is_repeated = what.due_ms is None and received == state.received
            return state if is_repeated else None
        if not state.received <= received:
            return None
        state = self._received(state, received)
        if what.due_ms is None:
            return state._replace(cancelled=True)
        moved = self._moved - received
        kept = {move for move in state.moves if move[0] not in moved}
        return state._replace(moves=frozenset(kept | {(name, number) for name in moved}))

    def _received(self, state: _State, names: frozenset[str]) -> _State:
        return state._replace(received=state.received | names)

    def _delivered(self, state: _State, arrival: Arrival) -> _State | None:
        name = arrival.subscription
        if state.cancelled and name not in state.received:
            return None
        if name in self._moved and not self._is_due(dict(state.moves).get(name), arrival):
            return None
        return self._received(state, frozenset([name]))

    def _is_due(self, number: int | None, arrival: Arrival) -> bool:
        """Return whether a delivery has the due time that a step, or the producer, decided."""
        first_ms, last_ms = self.message.earliest_ms, NEVER_MS
        if number is not None:
            what = self._steps[number].what
            assert isinstance(what, Amendment)
            assert what.due_ms is not None
            first_ms = what.due_ms
            if what.status is not None:
                # The broker counts from the moment at which it has the request.
                waited_ms = what.answered_ms - what.called_ms
                last_ms = first_ms + waited_ms + round(1000 * self.history.sending_s)
        sent_ms = self.history.unix_ms(arrival.sent_s)
        return first_ms <= arrival.due_ms <= last_ms or any(
            one.due_ms is not None and one.due_ms <= arrival.due_ms and one.called_ms <= sent_ms
            for one in self._loose
        )

    def _may_be_cancelled(self, by_ms: int) -> bool:
        return any(one.due_ms is None and one.called_ms <= by_ms for one in self._loose)
