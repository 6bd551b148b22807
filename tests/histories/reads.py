"""Answers to requests that read show the effect of all that was confirmed before (invariant 8).

A broker that has lost its lease may have an earlier state, so it must refuse. An answer is checked
when it comes. It must fit the facts that were known before its request and surely did not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from histories.history import History, Message
from histories.timing import earliest_due_ms

# The states of a message in a subscription that is still to get it for the first time.
_BEFORE_DELIVERY = frozenset({"pending", "not covered"})
_FINISHED = frozenset({"acknowledged", "cancelled", "lapsed"})


class Read(NamedTuple):
    """A request that read a topic, between two times."""

    kind: str
    topic: str
    called_ms: int
    answered_ms: int

    def __str__(self) -> str:
        return f"stale (8): the {self.kind} of {self.topic} at {self.called_ms}"


class Shown(NamedTuple):
    """A message that an answer shows as pending."""

    number: int
    offset: int
    due_ms: int


def wrong_page(history: History, read: Read, shown: Iterable[Shown]) -> Iterator[str]:
    """Find wrong messages in a list of all pending messages, and missing ones."""
    shown = list(shown)
    for one in shown:
        message = history.messages[one.number]
        if message.topic != read.topic:
            yield f"{read} shows message {one.number}, which was published to {message.topic}"
        elif one.offset == message.offset:
            if _is_over(history, read, message):
                yield f"{read} shows message {one.number} (offset {one.offset}), which is finished"
            earliest_ms = _earliest_ms(history, read, message)
            if one.due_ms < earliest_ms:
                yield f"{read} shows message {one.number} {earliest_ms - one.due_ms} ms early"
    missing = set(_waiting(history, read)) - {one.number for one in shown}
    for number in sorted(missing):
        yield f"{read} does not show message {number}, which waits"


def wrong_count(history: History, read: Read, count: int) -> Iterator[str]:
    """Find a wrong number of pending messages, or of those that are not due."""
    least = len(_waiting(history, read))
    most = sum(
        not _is_over(history, read, message)
        for message in history.messages
        if message.topic == read.topic and message.called_ms <= read.answered_ms
    )
    most += sum(len(history.dead_letters[name].asked) for name in history.topics[read.topic])
    if not least <= count <= most:
        yield f"{read} counts {count} messages, and {least} to {most} wait"


def wrong_states(
    history: History, read: Read, message: Message, states: Mapping[str, str]
) -> Iterator[str]:
    """Find subscriptions in which a message has another state than it must have."""
    slack_ms = round(1000 * history.sending_s)
    for name in history.topics[message.topic]:
        state = states.get(name, "no subscription")
        course = history.courses.get((name, message.offset), ())
        came_ms = min((history.unix_ms(one.sent_s) for one in course), default=read.answered_ms)
        if _is_finished(history, read, message, name):
            is_wrong = state not in _FINISHED
        elif came_ms + slack_ms < read.called_ms:
            is_wrong = state in _BEFORE_DELIVERY
        else:
            is_wrong = state == "no subscription"
        if is_wrong:
            yield f"{read} says that message {message.number} is {state} in {name}"


def is_waiting(history: History, read: Read, message: Message) -> bool:
    """Return whether a message was surely stored and not due during a read."""
    if message.confirmed_ms >= read.called_ms:
        return False
    amendments = [one for one in message.amendments if one.called_ms <= read.answered_ms]
    for one in amendments:
        if one.done is None or not one.once or one.answered_ms >= read.called_ms:
            return False  # it may take effect at this moment
        if one.done and one.due_ms is None:
            return False
    slack_ms = round(1000 * history.sending_s)
    return _earliest_ms(history, read, message) > read.answered_ms + slack_ms


def _waiting(history: History, read: Read) -> list[int]:
    return [
        message.number
        for message in history.messages
        if message.topic == read.topic and is_waiting(history, read, message)
    ]


def _is_over(history: History, read: Read, message: Message) -> bool:
    """Return whether all subscriptions that keep a topic's messages pending have finished one."""
    return message.offset >= 0 and all(
        _is_finished(history, read, message, name) for name in _shared(history, read.topic)
    )


def _is_finished(history: History, read: Read, message: Message, name: str) -> bool:
    """Return whether it was confirmed, before a read, that a subscription gets no more of one."""
    acked_s = history.acked_s.get((name, message.offset))
    if acked_s is not None and history.unix_ms(acked_s) < read.called_ms:
        return True
    return any(
        one.due_ms is None and one.surely_concerns(name) and one.answered_ms < read.called_ms
        for one in message.amendments
    )


def _earliest_ms(history: History, read: Read, message: Message) -> int:
    amendments = [one for one in message.amendments if one.called_ms <= read.answered_ms]
    return min(earliest_due_ms(message, name, amendments) for name in _shared(history, read.topic))


def _shared(history: History, topic: str) -> list[str]:
    return [name for name in history.topics[topic] if history.kinds[name] != "log"]
