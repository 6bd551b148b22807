"""A confirmed message is stored once, delivered, and acknowledged in the end (invariants 1, 4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from histories.dead_letters import perhaps_redriven, redriven
from histories.history import NEVER_MS, History, Message


def stored_once(history: History) -> Iterator[str]:
    """Find messages with more copies than redrives explain, and offsets with two messages."""
    more = perhaps_redriven(history)
    numbers: dict[tuple[str, int], set[int]] = defaultdict(set)
    for number, offsets in history.copies.items():
        message = history.messages[number]
        for offset in offsets:
            numbers[message.topic, offset].add(number)
        if len(offsets) > 1 + more[number]:
            yield (
                f"doubled (1): message {number} is stored at {sorted(offsets)} and was redriven at"
                f" most {more[number]} times"
            )
        if message.refused:
            yield f"doubled (1): message {number} was refused and is stored at {sorted(offsets)}"
    for (topic, offset), several in numbers.items():
        if len(several) > 1:
            yield f"mixed (1, 8): offset {offset} of {topic} has messages {sorted(several)}"


def came_elsewhere(history: History) -> Iterator[str]:
    """Find messages that came to a subscription of another topic."""
    for arrival in history.arrivals:
        topic = history.messages[arrival.number].topic
        if arrival.subscription not in history.topics[topic]:
            yield f"mixed (1, 8): {arrival} was published to {topic}"


def unfinished(history: History) -> Iterator[str]:
    """Yield a line for each copy that a subscription must still get and acknowledge."""
    dead = {
        (name, original)
        for name, found in history.dead_letters.items()
        for _, original in found.seen.values()
    }
    for message in history.messages:
        copies = history.copies.get(message.number, ())
        if not copies and message.confirmed_ms < NEVER_MS:
            yield f"lost (1, 4): message {message.number} never came to any subscription"
        if message.earliest_ms < history.expired_ms.get(message.topic, 0):
            continue
        for offset in copies:
            for name in history.topics[message.topic]:
                if name in history.seeks:
                    continue  # a seek may have passed it
                course = (name, offset)
                if course in history.ack_sent or course in dead:
                    continue
                if _may_be_cancelled(history, message, name, offset):
                    continue
                times = len(history.courses.get(course, ()))
                yield (
                    f"lost (1, 4): message {message.number} (offset {offset}) came to {name}"
                    f" {times} times, was not acknowledged, and has no dead letter"
                )
    surely = redriven(history)
    for number in perhaps_redriven(history):
        times = surely[number]
        if len(history.copies[number]) > 1 + times:
            yield (
                f"doubled (1): message {number} is stored at {sorted(history.copies[number])} and"
                f" was redriven {times} times"
            )
        if len(history.copies[number]) < 1 + times:
            yield (
                f"lost (1, 4): message {number} was redriven {times} times and is stored only"
                f" {len(history.copies[number])} times"
            )


def _may_be_cancelled(history: History, message: Message, name: str, offset: int) -> bool:
    """Return whether a subscription need not get a copy because of a cancel.

    A subscription that got the message before a cancel keeps it, also if the answer was lost.
    """
    if offset != message.offset or (name, offset) in history.courses:
        return False
    return any(
        one.due_ms is None and one.done is not False and one.may_concern(name)
        for one in message.amendments
    )
