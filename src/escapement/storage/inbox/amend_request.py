"""Requests to cancel or reschedule messages, which wait in the inbox between messages.

An *amend request* names messages of its target topic by their key, their dedup key or the offset of
one message. It applies to the messages before it in the inbox, and to those that the topic has when
the request is *begun* (broker/inbox/amended_entries.py). The *bound* of a request is the topic's
next offset at that moment. It is recorded in the entry before any message is changed. So a request
that is repeated after a crash changes no message that came later.

The body of an inbox entry of requests is a msgpack array: the bound, -1 if the requests are not
begun, and then an array for each request. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgpack
import numpy as np

from escapement.errors import InboxEntryDamaged
from escapement.message import NO_TIME, NO_TIMES, Buffer, Times
from escapement.storage.inbox.entry import InboxEntry, amend_body, encode_inbox_entry

# The bound of requests that are not begun.
NOT_BEGUN: Final = -1


class AmendRequest(NamedTuple):
    """A request to cancel or reschedule messages. Exactly one of the first three names them."""

    key: bytes = b""
    dedup: bytes = b""  # digest of a dedup key
    offset: int = -1
    cancels: bool = True
    at_ms: int = NO_TIME  # the new due time, if it does not cancel; NO_TIME: now


class AmendRequests(NamedTuple):
    """The requests of one inbox entry, in order, and their bound."""

    bound: int
    requests: Sequence[AmendRequest]

    @property
    def times(self) -> Times:
        """The new due times, which a topic may refuse."""
        times_ms = [one.at_ms for one in self.requests if one.at_ms != NO_TIME]
        return Times(at_ms=np.array(times_ms, np.int64)) if times_ms else NO_TIMES


class LaterRequests:
    """The requests behind a message, collected from the last to the first.

    A cancelled message stays cancelled, whatever other requests name it. Otherwise the last request
    counts.
    """

    def __init__(self) -> None:
        self.by_key: dict[bytes, tuple[int, AmendRequest]] = {}
        self.by_dedup: dict[bytes, tuple[int, AmendRequest]] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self.by_key or self.by_dedup)

    def add(self, requests: Sequence[AmendRequest]) -> None:
        """Add requests that are before all others. Those by offset concern no such message."""
        for one in reversed(requests):
            self._count += 1
            # A cancel has rank 0, and so comes before all reschedules in ``last``.
            ranked = 0 if one.cancels else self._count, one
            if one.key:
                self.by_key[one.key] = min(ranked, self.by_key.get(one.key, ranked))
            elif one.dedup:
                self.by_dedup[one.dedup] = min(ranked, self.by_dedup.get(one.dedup, ranked))

    def last(self, key: bytes, dedup: bytes) -> AmendRequest | None:
        """Return the request that counts for a message; None if none names it."""
        found = [
            ranked
            for ranked in (self.by_key.get(key), self.by_dedup.get(dedup))
            if ranked is not None
        ]
        return min(found)[1] if found else None


def amend_entry(
    target: str, source_id: str, requests: Sequence[AmendRequest], bound: int = NOT_BEGUN
) -> InboxEntry:
    """Return requests as an inbox entry."""
    body: bytes = msgpack.packb([bound, [list(one) for one in requests]])
    return InboxEntry(target, source_id, body, len(requests), amends=True)


def with_bound(found: AmendRequests, bound: int) -> bytes:
    """Return the encoded inbox entry of requests that are begun."""
    return encode_inbox_entry(amend_entry("-", "-", found.requests, bound))


def decode_amend_requests(data: Buffer) -> AmendRequests | None:
    """Decode an inbox entry of requests. Return None if the entry has messages.

    Raises:
      InboxEntryDamaged: if the entry does not decode.
    """
    body = amend_body(data)
    if body is None:
        return None
    try:
        bound, requests = msgpack.unpackb(body)
        return AmendRequests(bound, [AmendRequest(*one) for one in requests])
    except (ValueError, TypeError) as error:
        raise InboxEntryDamaged(f"the requests of an inbox entry do not decode: {error}") from error
