"""Receipts: the confirmations that messages are durable."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.client.producing.publish_request import PublishRequest
from escapement.message import Int64s, MessageId


@dataclass(frozen=True, slots=True)
class Receipt:
    """A confirmation that one message is durable.

    ``duplicate`` is True if the message was stored before: either by an earlier attempt whose
    receipt was lost, or as another message with the same dedup key, and then ``id`` is the id
    of that message. The ``id`` of a duplicate may be unknown (None).
    """

    id: MessageId | None
    duplicate: bool = False


class Receipts:
    """The receipts of a batch, in columns.

    ``offsets`` has the offset of each message, -1 if it is unknown. ``duplicates`` is True for
    each message that was stored before. Iterate over the receipts, or index them, for single
    receipts.
    """

    __slots__ = ("duplicates", "offsets", "topic")

    @classmethod
    def of(cls, topic: str, requests: list[PublishRequest]) -> Receipts:
        """Return the receipts of settled publish requests, in order."""
        offsets, duplicates = [], []
        for request in requests:
            count = request.known + request.count
            column = np.full(count, -1, np.int64)
            if request.offsets is not None:
                column[request.known :] = request.offsets
            elif request.base_offset >= 0:
                column[request.known :] = np.arange(
                    request.base_offset, request.base_offset + request.count
                )
            repeated = np.full(count, request.duplicate)
            if request.repeated is not None:
                repeated[request.known :] = request.repeated
            repeated[: request.known] = True
            offsets.append(column)
            duplicates.append(repeated)
        return cls(topic, np.concatenate(offsets), np.concatenate(duplicates))

    def __init__(self, topic: str, offsets: Int64s, duplicates: npt.NDArray[np.bool_]) -> None:
        self.topic = topic
        self.offsets = offsets
        self.duplicates = duplicates

    def __repr__(self) -> str:
        return f"<{len(self)} receipts of {self.topic}>"

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, row: int) -> Receipt:
        offset = int(self.offsets[row])
        id = MessageId(self.topic, offset) if offset >= 0 else None
        return Receipt(id, bool(self.duplicates[row]))

    def __iter__(self) -> Iterator[Receipt]:
        return (self[row] for row in range(len(self)))


class Pending(NamedTuple):
    """A sent message without a receipt yet; ``await`` it for the receipt."""

    topic: str
    request: PublishRequest
    row: int

    def __await__(self) -> Generator[Any, Any, Receipt]:
        return self.wait().__await__()

    async def wait(self) -> Receipt:
        """Wait for the receipt and return it.

        Raises:
          Disconnected: if no receipt arrives in time. The message may or may not be stored.
          EscapementError: if the broker refuses. The message is not stored.
        """
        request = self.request
        await request.wait()
        if request.error is not None:
            raise copy(request.error)
        offset = request.offset_of(self.row)
        id = MessageId(self.topic, offset) if offset >= 0 else None
        return Receipt(id, request.is_duplicate(self.row))
