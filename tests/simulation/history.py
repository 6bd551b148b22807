"""What clients saw: calls, answers, deliveries and acknowledgements, with their times.

A *message* is named by a number that its payload carries. An *arrival* is one delivery that reached
a client. Times in seconds are by the clock of the simulation, times in milliseconds are Unix times.
The checker sees nothing else.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

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


class History:
    """Everything that was seen from outside."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.began_ms = now_ms()
        self.topics: dict[str, list[str]] = {}  # the subscriptions of each topic
        self.kinds: dict[str, str] = {}  # of each subscription: shared, key, log
        self.messages: list[Message] = []
        self.arrivals: list[Arrival] = []
        self.ack_sent: set[tuple[str, int]] = set()  # by subscription and offset
        self.acked_s: dict[tuple[str, int], float] = {}  # when that was durable
        self.dead: dict[str, Counter[int]] = {}  # by subscription: the dead letters of each message
        self.ends: list[End] = []
        self.surprises: list[str] = []  # answers that a client must not get
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.ack_wait_s = 0.0
        self.disk_failed = False  # a disk refused a write, which may end a broker
        self.skew_steps_s: list[float] = []  # when a wall clock was set

    @property
    def now_s(self) -> float:
        return (self.now_ms() - self.began_ms) / 1000

    def publish(self, topic: str, key: str, earliest_ms: int) -> Message:
        """Note that a message is about to be sent."""
        message = Message(len(self.messages), topic, key, self.now_ms(), earliest_ms)
        self.messages.append(message)
        self.counts["published"] += 1
        return message

    def confirm(self, message: Message, offset: int) -> None:
        message.confirmed_ms = self.now_ms()
        message.offset = offset

    def end(self, host: str, error: BaseException) -> None:
        self.ends.append(End(self.now_s, host, error))
