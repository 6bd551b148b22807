"""What clients saw: calls, answers, deliveries and acknowledgements, with their times.

A *message* is named by a number that its payload carries. Each *copy* of it has an offset of its
own: the first comes from the producer, and every redriven dead letter adds one. An *arrival* is one
delivery that reached a client.

Times in seconds count from the beginning of the history. Times in milliseconds are Unix times. The
rules see nothing else.
"""

from __future__ import annotations

import struct
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from escapement import AmendStatus

_NUMBER: Final = struct.Struct("<Q")
NEVER_MS: Final = 1 << 62
# Seconds are floats. This makes up for their rounding errors.
_ROUNDING_MS: Final = 0.001


class Clock(Protocol):
    """The clock of the clients."""

    def now_ms(self) -> int:
        """Return the Unix time."""

    def now_s(self) -> float:
        """Return the time since the history began."""


class RealClock:
    """The machine's clock, by which brokers and clients of the stress test live."""

    def __init__(self) -> None:
        self._began_s = time.time()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def now_s(self) -> float:
        return time.time() - self._began_s


def payload_of(message: Message) -> bytes:
    return _NUMBER.pack(message.number).ljust(message.size_bytes, b".")


def number_of(payload: bytes) -> int:
    return int(_NUMBER.unpack_from(payload)[0])


@dataclass(slots=True)
class Amendment:
    """A cancel or a reschedule of one message, and its answer."""

    due_ms: int | None  # the new due time, or later; None: a cancel
    called_ms: int
    answered_ms: int = NEVER_MS
    # Whether it took effect for all subscriptions but ``handed``; None: not known
    done: bool | None = None
    handed: frozenset[str] = frozenset()
    # Whether the request was surely sent only once. A client that reconnects sends it again. Then
    # ``handed`` may name subscriptions that got the message after the first time.
    once: bool = False
    status: AmendStatus | None = None  # the answer; None: there is none, or it has no status

    def may_concern(self, subscription: str) -> bool:
        """Return whether it may have taken effect for a subscription."""
        if self.done is None or not self.once:
            return True
        return self.done and subscription not in self.handed

    def surely_concerns(self, subscription: str) -> bool:
        return self.done is True and subscription not in self.handed


@dataclass(slots=True)
class Message:
    """One message, as its producer and the amending client know it."""

    number: int
    topic: str
    key: str
    called_ms: int
    earliest_ms: int  # the due time, as far as the producer knows: it is this or later
    poison: bool = False  # consumers of subscriptions with dead letters refuse its first copy
    size_bytes: int = 40
    confirmed_ms: int = NEVER_MS  # its receipt came
    refused: bool = False  # the broker said that it is not stored
    offset: int = -1  # of the first copy, where the receipt named it
    amendments: list[Amendment] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Consumer:
    """One consumer of a subscription."""

    subscription: str
    left_s: float | None = None  # when it began to leave
    latest: dict[int, Arrival] = field(default_factory=dict)  # its last arrival of each offset


class Sent(NamedTuple):
    """When a piece was sent: by the clock of the simulation, and by that of the broker."""

    at_s: float
    broker_ms: int
    number: int = 0  # counts all pieces of the simulation


class Connection(Protocol):
    """A connection between a client and a broker."""

    ended_s: float | None  # when it broke or was closed; None also where that is not known


class Way(NamedTuple):
    """How a message came to a client."""

    connection: Connection
    process: Hashable = None  # the broker process that sent it; None: not known
    sent: Sent | None = None


@dataclass(slots=True, eq=False)
class Arrival:
    """One message that arrived at a consumer."""

    subscription: str
    number: int
    offset: int
    due_ms: int
    key: str
    again: bool  # whether it is marked as redelivered
    arrived_s: float
    arrived_ms: int
    way: Way
    consumer: Consumer
    returned_s: float | None = None  # when its consumer returned it
    acked_s: float | None = None  # when its consumer began to acknowledge it

    @property
    def sent_s(self) -> float:
        """When it was sent. Where that is not known, when it arrived."""
        return self.arrived_s if self.way.sent is None else self.way.sent.at_s

    @property
    def broker_ms(self) -> int:
        """The time of the broker's clock then."""
        return self.arrived_ms if self.way.sent is None else self.way.sent.broker_ms

    @property
    def sender(self) -> Hashable:
        """The process that sent it. Where that is not known, its connection."""
        return self.way.connection if self.way.process is None else self.way.process

    def __str__(self) -> str:
        return f"offset {self.offset} (message {self.number}) of {self.subscription}"


@dataclass(slots=True)
class DeadLetters:
    """Dead letters of one subscription, by their offset in the dead-letter topic."""

    seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # (number, original offset)
    listed_s: dict[int, float] = field(default_factory=dict)  # first, by original offset
    asked: set[int] = field(default_factory=set)  # a redrive was requested
    remaining: set[int] = field(default_factory=set)  # of the last listing
    reasons: dict[int, tuple[str, str]] = field(default_factory=dict)  # with details; if noted


@dataclass(slots=True)
class Seek:
    """A seek of a subscription to an offset or a time. It took effect between its two times."""

    subscription: str
    called_s: float
    answered_s: float = float("inf")
    offset: int | None = None
    from_ms: int | None = None


@dataclass(slots=True)
class End:
    """A broker that ended by itself."""

    at_s: float
    host: str
    error: BaseException


class History:
    """Everything that was seen from outside."""

    def __init__(self, clock: Clock) -> None:
        self.now_s = clock.now_s
        self.now_ms = clock.now_ms
        self.began_ms = clock.now_ms()
        self.topics: dict[str, list[str]] = {}  # the subscriptions of each topic
        self.kinds: dict[str, str] = {}  # of each subscription: shared, key, log
        self.max_deliveries: dict[str, int] = {}  # of the subscriptions with dead letters
        self.messages: list[Message] = []
        self.arrivals: list[Arrival] = []
        # The arrivals of each copy at each subscription, by subscription and offset
        self.courses: dict[tuple[str, int], list[Arrival]] = defaultdict(list)
        # The offsets at which each message is known to be stored
        self.copies: dict[int, set[int]] = defaultdict(set)
        self.ack_sent: set[tuple[str, int]] = set()  # by subscription and offset
        self.acked_s: dict[tuple[str, int], float] = {}  # when that was durable
        self.dead_letters: dict[str, DeadLetters] = defaultdict(DeadLetters)
        self.seeks: dict[str, list[Seek]] = {}  # of the subscriptions that are sought
        # Of a topic: messages that are due by this time may have expired
        self.expired_ms: dict[str, int] = {}
        self.ends: list[End] = []
        self.surprises: list[str] = []  # what must not happen, found while the run went on
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        # When each trouble began, and when all was well again. Each may cost unread deliveries, and
        # one more delivery of each message in flight. None: not known
        self.troubles: list[tuple[float, float]] | None = None
        self.sending_s = 0.0  # a broker's decision reaches clients within this time
        self.expiry_s = 0.0  # from a delivery on, until its ack wait may be over
        self.expiries_s: dict[str, float] = {}  # of subscriptions whose ack wait is another one
        self.disk_failed = False  # a disk refused a write, which may end a broker
        self.skew_steps_s: list[float] = []  # when a wall clock was set

    def seconds(self, unix_ms: int) -> float:
        """Return the time of this history for a Unix time."""
        return float("inf") if unix_ms >= NEVER_MS else (unix_ms - self.began_ms) / 1000

    def unix_ms(self, at_s: float) -> int:
        """Return the Unix time for a time of this history."""
        return self.began_ms + int(at_s * 1000 + _ROUNDING_MS)

    def publish(self, topic: str, key: str, earliest_ms: int) -> Message:
        """Note that a message is about to be sent."""
        message = Message(len(self.messages), topic, key, self.now_ms(), earliest_ms)
        self.messages.append(message)
        self.counts["published"] += 1
        return message

    def confirm(self, message: Message, offset: int) -> None:
        """Note a receipt; the offset is -1 where the receipt does not name it."""
        message.confirmed_ms = self.now_ms()
        if offset >= 0:
            message.offset = offset
            self.copies[message.number].add(offset)

    def first_copy(self, message: Message) -> int:
        """Return the offset of the copy that the producer published; -1 if it is not known."""
        copies = self.copies.get(message.number, ())
        return message.offset if message.offset >= 0 else min(copies, default=-1)

    def arrive(self, arrival: Arrival) -> None:
        """Note a delivery."""
        self.arrivals.append(arrival)
        self.courses[arrival.subscription, arrival.offset].append(arrival)
        self.copies[arrival.number].add(arrival.offset)
        arrival.consumer.latest[arrival.offset] = arrival
        self.counts["delivered"] += 1
        self.counts["delivered again"] += arrival.again

    def list_dead_letters(self, subscription: str, listed: dict[int, tuple[int, int]]) -> None:
        """Note a full listing: (number, original offset) by offset of the dead letter."""
        found = self.dead_letters[subscription]
        self.counts["dead letters"] += len(listed.keys() - found.seen.keys())
        found.seen |= listed
        for number, original in listed.values():
            self.copies[number].add(original)
            found.listed_s.setdefault(original, self.now_s())
        found.remaining = set(listed)

    def end(self, host: str, error: BaseException) -> None:
        self.ends.append(End(self.now_s(), host, error))

    def end_seek(self, seek: Seek, answered_s: float) -> None:
        """Note that a seek has taken effect. Earlier acknowledgements say nothing any more."""
        seek.answered_s = answered_s
        for key in [key for key in self.acked_s if key[0] == seek.subscription]:
            del self.acked_s[key]

    def acks_s(self, subscription: str, offset: int) -> list[float]:
        """Return when a subscription began to acknowledge each arrival of a copy."""
        course = self.courses.get((subscription, offset), ())
        return [one.acked_s for one in course if one.acked_s is not None]

    def was_sought(self, subscription: str, from_s: float, to_s: float) -> bool:
        """Return whether a seek may have taken effect between two times."""
        seeks = self.seeks.get(subscription, ())
        return any(one.called_s <= to_s and one.answered_s >= from_s for one in seeks)

    def expires_s(self, arrival: Arrival) -> float:
        """Return when the ack wait of a delivery may be over."""
        return arrival.sent_s + self.expiries_s.get(arrival.subscription, self.expiry_s)

    def trouble(self, began_s: float, ended_s: float, times: int = 1) -> None:
        """Note a trouble, which may have cost as many deliveries of each message."""
        self.troubles = (self.troubles or []) + [(began_s, ended_s)] * times


def in_order(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """Return arrivals in the order of sending, or of arrival where that is not known."""
    return sorted(arrivals, key=lambda one: 0 if one.way.sent is None else one.way.sent.number)
