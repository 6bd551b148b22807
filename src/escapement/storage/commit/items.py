"""What may be handed in to the commit pipeline: the items of a group commit.

Each names its topic and its size, and most say whom to tell. What a group makes of them is
:mod:`~escapement.storage.commit.group`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from escapement.dedup import Digests
from escapement.errors import EscapementError
from escapement.groupnames import Member
from escapement.message import NO_TIMES, Buffer, Int64s, Times
from escapement.storage.dedupkeys import KEY_BYTES
from escapement.storage.engine.base import Connection
from escapement.storage.lag import Timing
from escapement.storage.letters.letter import Letter
from escapement.storage.letters.parcel import Advance


def _ignore(error: EscapementError) -> None:
    """Nobody waits for this append."""


@dataclass(slots=True, eq=False)
class Append:
    """A batch for the log. ``fail`` is called, once, if it will not be made durable.

    ``letter_ids`` are the letters of the inbox that it was read from; they are taken out
    in the same transaction; of letters of jobs ``advances`` say how far their parcels are with
    it. ``digests`` are the messages' dedup keys, V16[count]; ``members`` says which of its rows
    belong to which group.

    A batch of which everything is stored already has no messages and no body: it says how
    far its producer has come, and is answered behind all that was handed in before it.
    """

    topic_id: int
    body: Buffer
    count: int
    times: Times = NO_TIMES
    producer_id: int = 0  # 0: a producer without a name
    last_sequence: int = -1
    context: Any = None
    fail: Callable[[EscapementError], None] = _ignore
    letter_ids: Sequence[int] = ()
    advances: Sequence[Advance] = ()
    digests: Digests | None = None
    members: Sequence[Member] = ()

    @property
    def size_bytes(self) -> int:
        keys = 0 if self.digests is None else KEY_BYTES * self.count
        return len(self.body) + 8 * self.count + keys


@dataclass(slots=True, eq=False)
class Restate:
    """Earlier messages with other times, or, without ``times``, with the same as before.

    ``fail`` is called, once, if it is not made durable.

    ``base_offset`` is the negative key of its row, never used before; ``offsets`` ascend.
    """

    topic_id: int
    base_offset: int
    offsets: Int64s
    body: Buffer
    times: Times | None
    stale_ms: Int64s  # when they were due before
    first_ms: Int64s  # when they were due by the row that first stated them
    published_ms: Int64s  # when that was accepted
    context: Any = None
    fail: Callable[[EscapementError], None] = _ignore
    earliest_ms: Int64s | int = 0  # with other times, none is due before

    @property
    def size_bytes(self) -> int:
        return len(self.body) + 40 * len(self.offsets)


@dataclass(slots=True, eq=False)
class Acks:
    """Offsets that a subscription acknowledged; stays queued until it is durable.

    ``letters`` are what the acknowledgement causes (a dead letter, a follow-up): they
    become durable with it.
    Under the negative id of its topic it says which messages were cancelled. ``timing`` is of
    what consumers acknowledged, and nothing else. ``lapsed`` are those of the offsets that the
    subscription let go before anybody was handed them.
    """

    topic_id: int
    subscription_id: int
    offsets: Int64s
    context: Any = None
    letters: Sequence[Letter] = ()
    timing: Timing | None = None
    lapsed: Int64s | None = None

    @property
    def size_bytes(self) -> int:
        lapsed = 0 if self.lapsed is None else len(self.lapsed)
        return 8 * (len(self.offsets) + lapsed) + self.letter_bytes

    @property
    def letter_bytes(self) -> int:
        return sum(letter.size_bytes for letter in self.letters)


@dataclass(slots=True, eq=False)
class Attempts:
    """Attempts counted for messages of a subscription; stays queued until it is durable."""

    topic_id: int
    subscription_id: int
    offsets: Int64s
    attempts: Int64s
    next_ms: Int64s
    due_ms: Int64s

    @property
    def size_bytes(self) -> int:
        return 40 * len(self.offsets)


@dataclass(slots=True, eq=False)
class Statement:
    """A function to be run in the group's transaction; it may have to run again."""

    topic_id: int
    run: Callable[[Connection], Any]
    settle: Callable[[], None]
    fail: Callable[[EscapementError], None]
    value: Any = None
    error: Exception | None = None
    size_bytes: int = 0
    forgets: str = ""  # a group of the topic that ends with it


Item = Append | Restate | Acks | Attempts | Statement
