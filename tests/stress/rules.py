"""The promises of a broker, as rules over a history. Pure: no clock and no input or output."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from stress.history import Arrival, Course, History, Message

# Deliveries and confirmations travel over different connections. A delivery may be received
# this long after a confirmation that was sent later.
OVERTAKE_MS: Final = 1_000
# Subscriptions with dead letters allow this many deliveries.
MAX_DELIVERIES: Final = 2
# Counts that must not be zero, besides those of the kinds of troubles: otherwise the run proves
# nothing about these events.
_SHOWN: Final = (
    "published",
    "delivered again",
    "dead letters",
    "redriven",
    "cancelled",
    "rescheduled",
    "run now",
    "generations begun",
    "generations forgotten",
)
# A shorter run may end before it has shown everything. A trouble comes every ten seconds or so, and
# after 16 of them each kind has come. The first generation of the log is forgotten in the second
# minute.
MINUTES_TO_SHOW_ALL: Final = 5


def unshown(counts: Mapping[str, int], troubles: Iterable[str]) -> list[str]:
    """Return what a run should have shown, and did not.

    Args:
      counts: the counts of the history.
      troubles: the kinds of troubles that the run can cause.
    """
    return [what for what in (*_SHOWN, *troubles) if not counts.get(what)]


def unfinished(history: History) -> Iterator[str]:
    """Yield a line for each confirmed message that a subscription still has to finish."""
    copies = _copies(history)
    for number, message in history.messages.items():
        if not message.confirmed:
            continue
        for name in history.subscriptions[message.topic]:
            if not _is_owed(message, name, history):
                continue
            if message.offset >= 0 and message.offset not in history.courses[name]:
                if not _died_unread(history, name, message.offset):
                    yield f"lost: message {number} never came to {name}"
            elif not copies[number]:
                yield f"lost: message {number} never came to any subscription"
    for name, courses in history.courses.items():
        dead_lettered = _dead_lettered(history, name)
        for offset, course in courses.items():
            if not course.ack_sent and offset not in dead_lettered:
                yield (
                    f"lost: message {course.number} (offset {offset}) came to {name} "
                    f"{course.deliveries} times, was not acknowledged, and has no dead letter"
                )
    yield from _lost_redrives(history, copies)


def violations(history: History) -> Iterator[str]:
    """Yield a line for each promise that was broken."""
    yield from history.faults
    yield from unfinished(history)
    yield from _stored_twice(history)
    for name, courses in history.courses.items():
        for offset, course in courses.items():
            message = history.messages[course.number]
            what = f"message {course.number} (offset {offset}) of {name}"
            if course.first_ms < message.earliest_ms:
                yield f"early: {what} came {message.earliest_ms - course.first_ms} ms early"
            yield from _moved(message, name, offset, course, what)
            if course.last_ms > course.durable_ms + OVERTAKE_MS:
                yield (
                    f"again: {what} came {course.last_ms - course.durable_ms} ms after its "
                    "durable acknowledgement"
                )
            if course.deliveries > _explained(history, course):
                yield (
                    f"repeated: {what} came {course.deliveries} times, was returned "
                    f"{course.returned} times, and no trouble explains the rest"
                )
            if course.fresh > 1:
                yield f"unmarked: {what} came {course.fresh} times as new"
            if (
                message.cancelled_but_for is not None
                and offset == message.offset
                and name not in message.cancelled_but_for
            ):
                yield f"cancelled: {what} was cancelled, and {name} was not named as having it"
        yield from _wrong_dead_letters(history, name)
        yield from _out_of_order(history, name)


def _explained(history: History, course: Course) -> int:
    """Return how often a message may come: again after each return, and for each trouble.

    So no trouble adds more deliveries than there were messages in flight.
    """
    troubles = sum(
        began_ms <= course.taken_ms and course.first_ms - OVERTAKE_MS <= ended_ms
        for began_ms, ended_ms in history.troubles
    )
    return 1 + course.returned + troubles


def _is_owed(message: Message, name: str, history: History) -> bool:
    """Return whether the subscription must get the first copy of a confirmed message."""
    if message.maybe_cancelled:
        return False
    if message.cancelled_but_for is None:
        return True
    # The broker may name a subscription that never had the message: that is no promise.
    return name in message.cancelled_but_for and message.offset in history.courses[name]


def _died_unread(history: History, name: str, offset: int) -> bool:
    """Return whether a message may have a dead letter that no consumer has read.

    A delivery counts when it is sent. A kill loses unread data in sockets and inboxes, so each
    delivery of the message may be lost if there were as many troubles before its dead letter.
    """
    dead_letters = history.dead_letters[name]
    for number, original in dead_letters.seen.values():
        if original == offset:
            due_ms, listed_ms = history.messages[number].earliest_ms, dead_letters.listed_ms[offset]
            troubles = sum(due_ms <= at_ms < listed_ms for at_ms, _ in history.troubles)
            return troubles >= MAX_DELIVERIES
    return False


def _copies(history: History) -> dict[int, set[int]]:
    """Return the offsets at which each message is known to be stored."""
    copies: dict[int, set[int]] = defaultdict(set)
    for number, message in history.messages.items():
        if message.offset >= 0:
            copies[number].add(message.offset)
    for courses in history.courses.values():
        for offset, course in courses.items():
            copies[course.number].add(offset)
    return copies


def _redriven(history: History) -> Counter[int]:
    """Return how many dead letters of each message were redriven."""
    return Counter(
        number
        for dead_letters in history.dead_letters.values()
        for offset, (number, _) in dead_letters.seen.items()
        if offset not in dead_letters.remaining
    )


def _dead_lettered(history: History, name: str) -> set[int]:
    return {original for _, original in history.dead_letters[name].seen.values()}


def _lost_redrives(history: History, copies: dict[int, set[int]]) -> Iterator[str]:
    for number, redriven in _redriven(history).items():
        if len(copies[number]) < 1 + redriven:
            yield (
                f"lost: message {number} was redriven {redriven} times and is stored only "
                f"{len(copies[number])} times"
            )
        topic = history.messages[number].topic
        for offset in copies[number] - {history.messages[number].offset}:
            for name in history.subscriptions[topic]:
                unread = _died_unread(history, name, offset)
                if offset not in history.courses[name] and not unread:
                    yield f"lost: redriven message {number} (offset {offset}) missed {name}"


def _stored_twice(history: History) -> Iterator[str]:
    redriven = _redriven(history)
    for number, offsets in _copies(history).items():
        if len(offsets) > 1 + redriven[number]:
            yield (
                f"doubled: message {number} is stored at {sorted(offsets)} and was redriven "
                f"{redriven[number]} times"
            )


def _moved(message: Message, name: str, offset: int, course: Course, what: str) -> Iterator[str]:
    if message.moved is None or offset != message.offset:
        return
    time_ms, but_for = message.moved
    if name not in but_for and course.first_ms < time_ms:
        yield f"early: {what} was moved and came {time_ms - course.first_ms} ms before its time"


def _wrong_dead_letters(history: History, name: str) -> Iterator[str]:
    dead_letters = history.dead_letters[name]
    by_original = Counter(original for _, original in dead_letters.seen.values())
    for original, count in by_original.items():
        if count > 1:
            yield f"doubled: offset {original} of {name} has {count} dead letters"
        course = history.courses[name].get(original)
        if course is None and not _died_unread(history, name, original):
            yield f"unknown: offset {original} of {name} has a dead letter and was never delivered"
    for offset in dead_letters.seen.keys() - dead_letters.remaining - dead_letters.asked:
        yield f"lost: dead letter {offset} of {name} is gone, and no client redrove it"


def _out_of_order(history: History, name: str) -> Iterator[str]:
    """Find messages that came after one of their key that was due later.

    The broker can only order durable messages. So a message may come late if it was confirmed
    after the other one was delivered, which is up to ``OVERTAKE_MS`` before that was received.
    """
    latest: dict[str, Arrival] = {}
    for arrival in history.arrivals[name]:
        last = latest.setdefault(arrival.key, arrival)
        if (arrival.due_ms, arrival.offset) >= (last.due_ms, last.offset):
            latest[arrival.key] = arrival
            continue
        message = history.messages[arrival.number]
        if message.offset == arrival.offset and message.settled_ms + OVERTAKE_MS < last.at_ms:
            yield (
                f"order: {name} got offset {arrival.offset} of key {arrival.key} after offset "
                f"{last.offset}, which was due {last.due_ms - arrival.due_ms} ms later"
            )
