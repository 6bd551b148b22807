"""Receipts: the confirmations that messages are durable."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.client.constructor import internal
from escapement.client.producing.publish_request import PublishRequest
from escapement.message import Bools, Int64s, MessageId


class Receipt(NamedTuple):
    """A confirmation that one message is durable.

    ``id`` is the permanent id of the message. ``duplicate`` is True if the broker had stored it
    before: either this message, by an earlier request whose receipt was lost, or another message
    with the same dedup key. In the second case ``id`` is that of the other message. The id of a
    duplicate may be unknown, and is then None.

    If the message has a replace key, ``replaced`` is the id of the pending message that it
    replaced, or None. ``kept`` is True if a pending message was kept instead of this one; ``id`` is
    then that of the pending message. A duplicate has neither.
    """

    id: MessageId | None
    duplicate: bool = False
    replaced: MessageId | None = None
    kept: bool = False


class Receipts:
    """The receipts of a batch of messages, in columns.

    ``offsets`` has the offset of each message in ``topic``, or -1 if it is unknown. ``duplicates``
    is True for each message that the broker had stored before (see ``Receipt``). ``replaced`` has
    the offset of the message that each one replaced, or -1, and ``kept`` is True for each message
    that was dropped in favour of a pending one; both are None if no message has a replace key.
    Iterate over the receipts, or index them, to get single receipts.
    """

    __slots__ = ("duplicates", "kept", "offsets", "replaced", "topic")

    @classmethod
    def _of(cls, topic: str, requests: list[PublishRequest]) -> Receipts:
        """Return the receipts of all messages in durable publish requests, in order."""
        if len(requests) == 1:
            one = requests[0]
            return cls(topic, one.offsets, one.duplicates, one.replaced, one.kept)
        replaced = kept = None
        if any(request.kept is not None for request in requests):
            replaced = np.concatenate([_filled(one.replaced, one, -1) for one in requests])
            kept = np.concatenate([_filled(one.kept, one, False) for one in requests])
        return cls(
            topic,
            np.concatenate([request.offsets for request in requests]),
            np.concatenate([request.duplicates for request in requests]),
            replaced,
            kept,
        )

    def __init__(
        self,
        topic: str,
        offsets: Int64s,
        duplicates: Bools,
        replaced: Int64s | None = None,
        kept: Bools | None = None,
    ) -> None:
        self.topic = topic
        self.offsets = offsets
        self.duplicates = duplicates
        self.replaced = replaced
        self.kept = kept

    def __repr__(self) -> str:
        return f"<{len(self)} receipts of {self.topic}>"

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, row: int) -> Receipt:
        return _receipt(self.topic, self, row)

    def __iter__(self) -> Iterator[Receipt]:
        return (self[row] for row in range(len(self)))


class Pending:
    """A message that ``Producer.submit`` has sent. ``await`` it to get the receipt."""

    __slots__ = ("_request", "_row", "_topic")

    @internal
    def __init__(self, topic: str, request: PublishRequest, row: int) -> None:
        self._topic = topic
        self._request = request
        self._row = row

    def __await__(self) -> Generator[Any, Any, Receipt]:
        return self.wait().__await__()

    async def wait(self) -> Receipt:
        """Wait for the receipt and return it.

        Raises:
          Disconnected: if no receipt arrives in time. The message may or may not be stored.
          EscapementError: if the broker refuses. The message is not stored.
        """
        await self._request.wait()
        return receipt_of(self._topic, self._request, self._row)


def receipt_of(topic: str, request: PublishRequest, row: int) -> Receipt:
    """Return the receipt of one message of a settled request, or raise the request's error."""
    if request.error is not None:
        raise copy(request.error)
    return _receipt(topic, request, row)


def _receipt(topic: str, columns: Receipts | PublishRequest, row: int) -> Receipt:
    id, duplicate = _id(topic, columns.offsets, row), columns.duplicates.item(row)
    if columns.replaced is None or columns.kept is None:
        return Receipt(id, duplicate)
    return Receipt(id, duplicate, _id(topic, columns.replaced, row), columns.kept.item(row))


def _filled(column: npt.NDArray[Any] | None, request: PublishRequest, default: object) -> Any:
    """Return a column of a publish request, filled with a default if it is None."""
    return np.full(len(request.offsets), default) if column is None else column


def _id(topic: str, offsets: Int64s, row: int) -> MessageId | None:
    offset = offsets.item(row)
    return MessageId(topic, offset) if offset >= 0 else None
