"""What a dead letter is: a copy of a message that was tried too often, and why it is here.

The copy keeps payload, key, priority and properties, and has further properties that say
where it comes from; ``restored`` takes them off again. A dead letter that dies again keeps
what was said of it before, so that it goes back as the letter it was. Dead letters travel
through the inbox, so that a message is acknowledged and its copy written in one transaction.

Pure. A loop over messages is meant here: each one's properties are its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.ready import Rows
from escapement.errors import InvalidRequest
from escapement.message import Blobs, Int64s, MessageBatch
from escapement.names import TopicName
from escapement.properties import AS_IS, READABLE, pack_again, read_properties
from escapement.storage.letters.letter import Letter
from escapement.storage.policy import SubscriptionPolicy

Reason = Literal["nack", "timeout", "disconnect", "expired", "dropped"]
REASONS: Final[tuple[Reason, ...]] = ("nack", "timeout", "disconnect", "expired", "dropped")

# The subscription that keeps dead letters until they are sent back or thrown away.
KEEPER: Final = "dead-letters"
# The body of one letter, unless a single message is larger: some of them are one commit.
LETTER_BYTES: Final = 1 << 20
# A message that is larger fits no letter, what is added to it included.
MAX_MESSAGE_BYTES: Final = (8 << 20) - (16 << 10)

_PREFIX: Final = "dead_letter_"
# What was said of it when it died before, the earliest first: a list of maps like ours.
_BEFORE: Final = "dead_letter_before"
# Of a letter that goes round in circles no more than this is remembered.
_MOST_BEFORE: Final = 8


class Dead(NamedTuple):
    """Messages that will not be tried again, and the reason of each, by its number."""

    rows: Rows
    reasons: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, rows: Rows, reason: Reason) -> Dead:
        """All of them for the same reason."""
        return cls(rows, np.full(rows.height, REASONS.index(reason), np.uint8))

    def pick(self, at: Int64s) -> Dead:
        """Those at these positions."""
        return Dead(self.rows.pick(at), self.reasons[at])

    @staticmethod
    def concat(parts: Sequence[Dead]) -> Dead:
        """The parts one below the other."""
        return Dead(
            Rows.concat([part.rows for part in parts]),
            np.concatenate([np.zeros(0, np.uint8), *(part.reasons for part in parts)]),
        )


def target(topic: TopicName, subscription: str, policy: SubscriptionPolicy) -> TopicName:
    """Where the dead letters of a subscription go.

    Raises:
      InvalidRequest: if that is its own topic, or no name that a topic may have.
    """
    if policy.dead_letter_topic:
        found = TopicName.parse(policy.dead_letter_topic)
    else:
        try:
            found = replace(topic, name=f"{topic.name}-{subscription}-DLQ")
        except InvalidRequest as error:
            raise InvalidRequest(f"name a dead_letter_topic: {error}") from None
    if found == topic:
        raise InvalidRequest(
            f"{topic.full} cannot be the dead-letter topic of its own subscription {subscription}"
        )
    return found


def marked(
    batch: MessageBatch,
    dead: Dead,
    published_ms: Int64s,
    topic: TopicName,
    subscription: str,
    now_ms: int,
) -> MessageBatch:
    """The copies, with what is to be known about them.

    Args:
      published_ms: when each was accepted; 0 where that is not known any more.
    """
    rows = dead.rows
    packed = _properties(batch)
    made = []
    columns = (rows.offsets, rows.counts, rows.due_ms, published_ms)
    reasons = [REASONS[number] for number in dead.reasons.tolist()]
    table = zip(packed, reasons, *(column.tolist() for column in columns), strict=True)
    for raw, reason, offset, attempts, due_ms, accepted_ms in table:
        properties, said = _parted(raw)
        if said:
            before = [*_before(said), {n: v for n, v in said.items() if n != _BEFORE}]
            properties[_BEFORE] = before[-_MOST_BEFORE:]
        properties |= {
            f"{_PREFIX}reason": reason,
            f"{_PREFIX}attempts": attempts,
            f"{_PREFIX}topic": topic.full,
            f"{_PREFIX}subscription": subscription,
            f"{_PREFIX}offset": offset,
            f"{_PREFIX}due_at_ms": due_ms,
            f"{_PREFIX}died_at_ms": now_ms,
        }
        if accepted_ms:
            properties[f"{_PREFIX}published_at_ms"] = accepted_ms
        made.append(pack_again(properties))
    # They belong to no group: of theirs the message is done with.
    return replace(batch, properties=Blobs.of(made), groups=None)


def origins(batch: MessageBatch) -> list[dict[str, Any]]:
    """What ``marked`` has said of each message; nothing of one that is no dead letter."""
    found = []
    for raw in _properties(batch):
        _, said = _parted(raw, READABLE)
        found.append({n.removeprefix(_PREFIX): v for n, v in said.items() if n != _BEFORE})
    return found


def restored(batch: MessageBatch) -> MessageBatch:
    """The messages as they were, without what ``marked`` has added."""
    left = []
    for raw in _properties(batch):
        kept, said = _parted(raw)
        before = _before(said)
        if before:
            kept |= before.pop()
        if before:
            kept[_BEFORE] = before
        left.append(pack_again(kept) if kept else b"")
    properties = Blobs.of(left) if any(left) else None
    return replace(batch, properties=properties, groups=None)


def letters(target: TopicName, source: str, batch: MessageBatch, offsets: Int64s) -> list[Letter]:
    """The batch as letters of bounded size.

    Args:
      source: with a message's offset it names a letter for ever.
    """
    return [
        Letter(target.full, f"{source}/{offsets[at[0]]}", batch.take(at).encode(), len(at))
        for at in _bounded(sizes(batch))
    ]


def sizes(batch: MessageBatch) -> Int64s:
    """About how many bytes each message takes in a body; int64[n]."""
    found = batch.payloads.lengths.astype(np.int64) + 16
    for column in (batch.keys, batch.properties):
        if column is not None:
            found += column.lengths
    return found


def _bounded(sizes: Int64s) -> Iterator[Int64s]:
    """Runs of positions: one each, or as many as ``LETTER_BYTES`` hold."""
    ends = np.cumsum(sizes)
    first, before = 0, 0
    while first < len(sizes):
        last = max(first + 1, int(np.searchsorted(ends, before + LETTER_BYTES, "right")))
        yield np.arange(first, last)
        first, before = last, int(ends[last - 1])


def _parted(packed: bytes, unreadable: str = AS_IS) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """What a message was sent with, and what ``marked`` has said of it."""
    properties = read_properties(packed, unreadable)
    said = {n: v for n, v in properties.items() if isinstance(n, str) and n.startswith(_PREFIX)}
    return {n: v for n, v in properties.items() if n not in said}, said


def _before(said: dict[Any, Any]) -> list[dict[Any, Any]]:
    before = said.get(_BEFORE)
    return [one for one in before if isinstance(one, dict)] if isinstance(before, list) else []


def _properties(batch: MessageBatch) -> list[bytes]:
    return [b""] * len(batch) if batch.properties is None else batch.properties.to_list()
