"""What clients saw: calls, answers, deliveries and acknowledgements, with their times.

A *message* is named by a number that its payload carries. An *arrival* is one delivery that reached
a client. Times in seconds are by the clock of the simulation, times in milliseconds are Unix times.
The checker sees nothing else.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from simulation.network import Cable, Sent

_NUMBER: Final = struct.Struct("<Q")
NEVER_MS: Final = 1 << 62


def payload_of(number: int) -> bytes:
    return _NUMBER.pack(number).ljust(40, b".")


def number_of(payload: bytes) -> int:
    return int(_NUMBER.unpack_from(payload)[0])


@dataclass(slots=True)
class Amendment:
    """A cancel or a reschedule of one message, and its answer."""

    due_ms: int | None  # the new due time; None: a cancel
    called_ms: int
    answered_ms: int = NEVER_MS
    # Whether it took effect for all subscriptions but ``handed``; None: not known
    done: bool | None = None
    handed: frozenset[str] = frozenset()


@dataclass(slots=True)
class Message:
    """One message, as its producer and the amending client know it."""

    number: int
    topic: str
    key: str
    called_ms: int
    earliest_ms: int  # the due time, as far as the producer knows: it is this or later
    confirmed_ms: int = NEVER_MS  # its receipt came
    refused: bool = False  # the broker said that it is not stored
    offset: int = -1
    amendments: list[Amendment] = field(default_factory=list)

    def earliest_due_ms(self, subscription: str, amendments: Sequence[Amendment]) -> int:
        """Return the earliest due time that it may have after some of its amendments."""
        earliest_ms = self.earliest_ms
        for one in amendments:
            if one.due_ms is None or one.done is False or subscription in one.handed:
                continue
            earliest_ms = one.due_ms if one.done else min(earliest_ms, one.due_ms)
        return earliest_ms


@dataclass(slots=True, eq=False)
class Consumer:
    """One consumer of a subscription."""

    subscription: str
    left_s: float | None = None  # when it began to leave
    latest: dict[int, Arrival] = field(default_factory=dict)  # its last arrival of each offset


@dataclass(slots=True)
class Arrival:
    """One message that arrived at a consumer."""

    subscription: str
    number: int
    offset: int
    due_ms: int
    key: str
    again: bool  # whether it is marked as redelivered
    sent: Sent
    arrived_s: float
    host: tuple[str, int]  # the broker process that sent it
    cable: Cable
    consumer: Consumer
    returned_s: float | None = None  # when its consumer returned it

    @property
    def sent_s(self) -> float:
        return self.sent.at_s


@dataclass(slots=True)
class End:
    """A broker that ended by itself."""

    at_s: float
    host: str
    error: BaseException


@dataclass(slots=True)
class Seek:
    """A seek of a subscription to an offset or a time. It took effect between its two times."""

    subscription: str
    called_s: float
    answered_s: float = float("inf")
    offset: int | None = None
    from_ms: int | None = None


class Check(Protocol):
    """What clients know of a feature, and the rules that it must keep."""

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield what must still happen."""

    def violations(self, history: History) -> Iterator[str]:
        """Yield a line for each violation."""


class History:
    """Everything that was seen from outside."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.began_ms = now_ms()
        self.topics: dict[str, list[str]] = {}  # the subscriptions of each topic
        self.kinds: dict[str, str] = {}  # of each subscription: shared, key, log
        self.messages: list[Message] = []
        self.arrivals: list[Arrival] = []
        # When acknowledgements were sent, in seconds, by subscription and offset
        self.ack_sent: dict[tuple[str, int], list[float]] = {}
        self.acked_s: dict[tuple[str, int], float] = {}  # when that was durable
        self.dead: dict[str, Counter[int]] = {}  # by subscription: the dead letters of each message
        self.redrives: Counter[int] = Counter()  # asked for, of the dead letters of each message
        self.seeks: dict[str, list[Seek]] = {}  # of the subscriptions that are sought
        # Of a topic: how long after its due time a message must come if no fault keeps it
        self.expiries_ms: dict[str, int] = {}
        self.healed_ms = NEVER_MS  # the end of all faults
        self.ends: list[End] = []
        self.checks: list[Check] = []  # of the features of the run
        self.surprises: list[str] = []  # answers that a client must not get
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.ack_wait_s = 0.0
        self.disk_failed = False  # a disk refused a write, which may end a broker
        self.skew_steps_s: list[float] = []  # when a wall clock was set

    @property
    def now_s(self) -> float:
        return (self.now_ms() - self.began_ms) / 1000

    def ms(self, at_s: float) -> float:
        """Return a time of the simulation as Unix time."""
        return self.began_ms + at_s * 1000

    def end_seek(self, seek: Seek, answered_s: float) -> None:
        """Note that a seek has taken effect. Earlier acknowledgements say nothing any more."""
        seek.answered_s = answered_s
        for key in [key for key in self.acked_s if key[0] == seek.subscription]:
            del self.acked_s[key]

    def was_sought(self, subscription: str, from_s: float, to_s: float) -> bool:
        """Return whether a seek may have taken effect between two times."""
        seeks = self.seeks.get(subscription, ())
        return any(one.called_s <= to_s and one.answered_s >= from_s for one in seeks)

    def publish(self, topic: str, key: str, earliest_ms: int) -> Message:
        """Note that a message is about to be sent."""
        message = Message(len(self.messages), topic, key, self.now_ms(), earliest_ms)
        self.messages.append(message)
        self.counts["published"] += 1
        return message

    def confirm(self, message: Message, offset: int) -> None:
        message.confirmed_ms = self.now_ms()
        message.offset = offset

    def send_ack(self, subscription: str, offset: int) -> None:
        """Note that an acknowledgement is about to be sent."""
        self.ack_sent.setdefault((subscription, offset), []).append(self.now_s)

    def end(self, host: str, error: BaseException) -> None:
        self.ends.append(End(self.now_s, host, error))
