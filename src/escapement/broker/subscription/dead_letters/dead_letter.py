"""A dead letter: a copy of a message that a subscription gave up, and the reason.

The copy keeps payload, key, priority and properties. ``marked`` adds further properties, which name
its origin; ``restored`` removes them. A dead letter that is dead-lettered again keeps its earlier
history, so that ``restored`` returns the earlier dead letter. Dead letters pass through the inbox,
so that one transaction acknowledges a message and writes its copy.

Pure. The loops over single messages are intended: each message has properties of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.priorities.ready import Rows
from escapement.errors import InvalidRequest
from escapement.message import NO_TIMES, Blobs, Int64s, MessageBatch, Times, cuts
from escapement.names import TopicName
from escapement.properties import AS_IS, READABLE, pack_again, read_properties
from escapement.protocol.limits import MAX_TOPIC_CHARS
from escapement.storage.catalog.policy import SubscriptionPolicy
from escapement.storage.inbox.entry import InboxEntry

Reason = Literal["nack", "timeout", "disconnect", "expired", "dropped", "rejected"]
REASONS: Final[tuple[Reason, ...]] = (
    "nack",
    "timeout",
    "disconnect",
    "expired",
    "dropped",
    "rejected",
)

# The subscription that keeps the dead letters of its topic until they are sent back or deleted.
DEAD_LETTERS_SUBSCRIPTION: Final = "dead-letters"
# The most bytes in the body of one inbox entry, unless a single message is larger. Several entries
# share a commit.
ENTRY_BYTES: Final = 1 << 20
# The largest message that fits into an inbox entry, with room for the properties of ``marked``.
MAX_MESSAGE_BYTES: Final = (8 << 20) - (16 << 10)

_PREFIX: Final = "dead_letter_"
# The property of a dead letter that was dead-lettered again: a list with the properties that each
# earlier dead letter got from ``marked``, the oldest first.
_BEFORE: Final = "dead_letter_before"
# A dead letter keeps the properties of this many earlier dead letters, the latest ones.
_MOST_BEFORE: Final = 8
# The properties that ``marked`` adds, without their prefix.
_TEXTS: Final = ("reason", "detail", "topic", "subscription")
_NUMBERS: Final = ("attempts", "offset", "due_at_ms", "died_at_ms", "published_at_ms")


class Dead(NamedTuple):
    """Dead messages.

    Attributes:
      reasons: the position of each message's reason in ``REASONS``.
      details: what the consumer that rejected each message said about it; "" for nothing. Messages
        that were rejected together share one str.
    """

    rows: Rows
    reasons: npt.NDArray[np.uint8]
    details: npt.NDArray[np.object_]

    @classmethod
    def of(cls, rows: Rows, reason: Reason, detail: str = "") -> Dead:
        """Return dead messages that share one reason and detail."""
        height = rows.height
        reasons = np.full(height, REASONS.index(reason), np.uint8)
        return cls(rows, reasons, np.full(height, detail, object))

    def pick(self, at: Int64s) -> Dead:
        """Return the messages at these positions."""
        return Dead(self.rows.pick(at), self.reasons[at], self.details[at])

    @staticmethod
    def concat(parts: Sequence[Dead]) -> Dead:
        """Concatenate the parts."""
        return Dead(
            Rows.concat([part.rows for part in parts]),
            np.concatenate([np.zeros(0, np.uint8), *(part.reasons for part in parts)]),
            np.concatenate([np.zeros(0, object), *(part.details for part in parts)]),
        )


def target(topic: TopicName, subscription: str, policy: SubscriptionPolicy) -> TopicName:
    """Return the dead-letter topic of a subscription.

    Raises:
      InvalidRequest: if it is the subscription's own topic, or its name is not a valid topic name.
    """
    if policy.dead_letter_topic:
        found = TopicName.parse(policy.dead_letter_topic)
    else:
        try:
            found = replace(topic, name=f"{topic.name}-{subscription}-DLQ")
        except InvalidRequest as error:
            raise InvalidRequest(
                f"set dead_letter_topic for the subscription {subscription}: {error}"
            ) from None
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
    """Return the dead letters: copies of the messages with their origin in the properties.

    Args:
      batch: the messages that failed, expired or were dropped.
      dead: their rows, reasons and details, in the same order.
      published_ms: when each message was accepted; 0 if unknown; int64[n].
      topic: the topic of the messages.
      subscription: the name of the subscription that gives them up.
    """
    rows = dead.rows
    packed = batch.strings(batch.properties)
    made = []
    columns = (rows.offsets, rows.counts, rows.due_ms, published_ms)
    reasons = [REASONS[number] for number in dead.reasons.tolist()]
    details = dead.details.tolist()
    table = zip(packed, reasons, details, *(column.tolist() for column in columns), strict=True)
    for raw, reason, detail, offset, attempts, due_ms, accepted_ms in table:
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
        if detail:
            properties[f"{_PREFIX}detail"] = detail
        if accepted_ms:
            properties[f"{_PREFIX}published_at_ms"] = accepted_ms
        made.append(pack_again(properties))
    # A dead letter belongs to no event group. In its group, the original message is completed.
    return replace(batch, properties=Blobs.of(made), groups=None)


def origins(batch: MessageBatch) -> list[dict[str, Any]]:
    """Return the origin of each dead letter, as ``marked`` noted it; empty for other messages.

    A publisher may set properties with the same names. Those that ``marked`` cannot have set are
    left out. So an origin is small.
    """
    found = []
    for raw in batch.strings(batch.properties):
        _, said = _parted(raw, READABLE)
        noted = {n: said.get(_PREFIX + n) for n in (*_TEXTS, *_NUMBERS)}
        found.append({n: v for n, v in noted.items() if _may_be_noted(n, v)})
    return found


def origin_of(topic: TopicName, subscription: str, offset: int) -> dict[str, Any]:
    """Return the properties by which to find the dead letter of a message."""
    return {
        f"{_PREFIX}topic": topic.full,
        f"{_PREFIX}subscription": subscription,
        f"{_PREFIX}offset": offset,
    }


def _may_be_noted(name: str, value: Any) -> bool:
    if name in _NUMBERS:
        return type(value) is int
    return type(value) is str and len(value) <= MAX_TOPIC_CHARS


def restored(batch: MessageBatch) -> MessageBatch:
    """Return the original message of each dead letter, without the properties of ``marked``.

    If the original message was a dead letter itself, it gets its own properties of ``marked`` back.
    """
    left = []
    for raw in batch.strings(batch.properties):
        kept, said = _parted(raw)
        before = _before(said)
        if before:
            kept |= before.pop()
        if before:
            kept[_BEFORE] = before
        left.append(pack_again(kept) if kept else b"")
    properties = Blobs.of(left) if any(left) else None
    return replace(batch, properties=properties, groups=None)


def inbox_entries(
    target: TopicName,
    source: str,
    batch: MessageBatch,
    offsets: Int64s,
    delay_ms: Int64s | None = None,
) -> list[InboxEntry]:
    """Return dead letters as inbox entries of bounded size.

    Args:
      target: the dead-letter topic.
      source: the subscription that gives the messages up. Together with the offset of an entry's
        first message, it identifies the entry forever.
      offsets: the offsets of the original messages; int64[n].
      delay_ms: the delay of each message; None: they are due at once.
    """
    return [
        InboxEntry(
            target.full,
            f"{source}/{offsets[low]}",
            batch.part(low, high).encode(),
            high - low,
            NO_TIMES if delay_ms is None else Times(delay_ms=delay_ms[low:high]),
        )
        for low, high in cuts(sizes(batch), ENTRY_BYTES, len(batch))
    ]


def sizes(batch: MessageBatch) -> Int64s:
    """Return about how many bytes each message takes in the body of an inbox entry; int64[n]."""
    return batch.string_sizes() + 16


def _parted(packed: bytes, unreadable: str = AS_IS) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Split properties into the message's own and those that ``marked`` added."""
    properties = read_properties(packed, unreadable)
    said = {n: v for n, v in properties.items() if isinstance(n, str) and n.startswith(_PREFIX)}
    return {n: v for n, v in properties.items() if n not in said}, said


def _before(said: dict[Any, Any]) -> list[dict[Any, Any]]:
    before = said.get(_BEFORE)
    return [one for one in before if isinstance(one, dict)] if isinstance(before, list) else []
