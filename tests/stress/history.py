"""The receipts, answers and deliveries that clients saw: facts without a judgement.

A *message* is what a producer published, named by a number that its payload carries. Each
*copy* of it has an offset of its own: the first comes from the producer, and every redriven
dead letter adds one. A *course* is what one subscription made of one copy.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

_NUMBER: Final = struct.Struct("<Q")
NEVER_MS: Final = 1 << 62


def now_ms() -> int:
    """Return the wall clock's time in milliseconds."""
    return time.time_ns() // 1_000_000


def payload_of(number: int, size_bytes: int) -> bytes:
    """Return a payload of that size, at least eight bytes, which names the message."""
    return _NUMBER.pack(number).ljust(size_bytes, b".")


def number_of(payload: bytes) -> int:
    """Return the number of the message that the payload belongs to."""
    return int(_NUMBER.unpack_from(payload)[0])


@dataclass(slots=True)
class Message:
    """One message as its producer and the amending client know it. Times in milliseconds."""

    topic: str
    earliest_ms: int  # no delivery may come before
    poison: bool  # consumers of subscriptions with dead letters never acknowledge its first copy
    confirmed: bool = False  # its receipt came
    offset: int = -1  # of the first copy, where the receipt named it
    # Its time was confirmed then, by a receipt or by the answer to an amendment.
    settled_ms: int = NEVER_MS
    # Cancelled for all subscriptions but these, which may have had it before.
    cancelled_but_for: frozenset[str] | None = None
    maybe_cancelled: bool = False  # a cancel was sent, and its answer was lost
    # A later time that holds for all subscriptions but those named: (time, names).
    moved: tuple[int, frozenset[str]] | None = None


@dataclass(slots=True)
class Course:
    """The deliveries and acknowledgements of one copy by one subscription."""

    number: int
    deliveries: int = 0
    returned: int = 0  # times that a consumer did not keep it: nacked, released, forgot or left
    fresh: int = 0  # deliveries that are marked as the first one
    first_ms: int = NEVER_MS  # received, by the clients' clock
    last_ms: int = 0  # the last delivery arrived then, or later
    taken_ms: int = 0  # the last delivery arrived then, or earlier
    ack_sent: bool = False
    durable_ms: int = NEVER_MS  # a durable acknowledgement was confirmed then


@dataclass(slots=True)
class Arrival:
    """A first delivery of a subscription that keeps the order of keys."""

    number: int
    key: str
    due_ms: int
    offset: int
    at_ms: int  # it arrived then, or later


@dataclass
class DeadLetters:
    """Dead letters of one subscription, by their offset in the dead-letter topic."""

    seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # (number, original offset)
    listed_ms: dict[int, int] = field(default_factory=dict)  # first, by original offset
    asked: set[int] = field(default_factory=set)  # a redrive was requested
    remaining: set[int] = field(default_factory=set)  # of the last listing


@dataclass
class History:
    """Everything seen from outside."""

    subscriptions: dict[str, list[str]]  # by topic
    ordered: frozenset[str] = frozenset()  # subscriptions that keep the order of keys
    messages: dict[int, Message] = field(default_factory=dict)
    courses: dict[str, dict[int, Course]] = field(default_factory=dict)  # by offset
    dead_letters: dict[str, DeadLetters] = field(default_factory=dict)
    arrivals: dict[str, list[Arrival]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)  # found while the run went on
    # When each trouble began, and when all was well again. Each may cost unread deliveries, and one
    # more delivery of each message in flight.
    troubles: list[tuple[int, int]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for names in self.subscriptions.values():
            for name in names:
                self.courses[name] = {}
                self.dead_letters[name] = DeadLetters()
                self.arrivals[name] = []

    def publish(self, topic: str, earliest_ms: int, poison: bool) -> int:
        """Note that a message is about to be sent; return its number."""
        number = len(self.messages)
        self.messages[number] = Message(topic, earliest_ms, poison)
        return number

    def confirm(self, number: int, offset: int) -> None:
        """Note a receipt; the offset is -1 where the receipt does not name it."""
        message = self.messages[number]
        message.confirmed, message.offset = True, offset
        message.settled_ms = now_ms()
        self.counts["published"] += 1

    def deliver(
        self,
        subscription: str,
        number: int,
        offset: int,
        due_ms: int,
        key: str,
        again: bool,
        empty_ms: int,
        at_ms: int,
    ) -> Course:
        """Note a delivery.

        Args:
          again: whether the broker marks it as redelivered.
          empty_ms: the inbox of its consumer was empty then.
          at_ms: its consumer took it out then.
        """
        known = self.courses[subscription]
        course = known.get(offset)
        if course is None:
            course = known[offset] = Course(number)
        course.deliveries += 1
        course.fresh += not again
        course.first_ms = min(course.first_ms, at_ms)
        course.last_ms = max(course.last_ms, empty_ms)
        course.taken_ms = max(course.taken_ms, at_ms)
        self.counts["delivered"] += 1
        self.counts["delivered again"] += again
        if not again and subscription in self.ordered:
            self.arrivals[subscription].append(Arrival(number, key, due_ms, offset, empty_ms))
        return course

    def list_dead_letters(self, subscription: str, listed: dict[int, tuple[int, int]]) -> None:
        """Note a full listing: (number, original offset) by offset of the dead letter."""
        dead_letters = self.dead_letters[subscription]
        self.counts["dead letters"] += len(listed.keys() - dead_letters.seen.keys())
        dead_letters.seen |= listed
        for _, original in listed.values():
            dead_letters.listed_ms.setdefault(original, now_ms())
        dead_letters.remaining = set(listed)
