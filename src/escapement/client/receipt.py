"""Receipts: the confirmations that messages are durable."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.client.parcel import Parcel
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
    def of(cls, topic: str, parcels: list[Parcel]) -> Receipts:
        """Return the receipts of settled publish requests, in order."""
        offsets, duplicates = [], []
        for parcel in parcels:
            count = parcel.known + parcel.count
            column = np.full(count, -1, np.int64)
            if parcel.offsets is not None:
                column[parcel.known :] = parcel.offsets
            elif parcel.base_offset >= 0:
                column[parcel.known :] = np.arange(
                    parcel.base_offset, parcel.base_offset + parcel.count
                )
            repeated = np.full(count, parcel.duplicate)
            if parcel.repeated is not None:
                repeated[parcel.known :] = parcel.repeated
            repeated[: parcel.known] = True
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
    parcel: Parcel
    row: int

    def __await__(self) -> Generator[Any, Any, Receipt]:
        return self.wait().__await__()

    async def wait(self) -> Receipt:
        """Wait for the receipt and return it.

        Raises:
          Disconnected: if no receipt arrives in time. The message may or may not be stored.
          EscapementError: if the broker refuses. The message is not stored.
        """
        parcel = self.parcel
        await parcel.wait()
        if parcel.error is not None:
            raise copy(parcel.error)
        offset = parcel.offset_of(self.row)
        id = MessageId(self.topic, offset) if offset >= 0 else None
        return Receipt(id, parcel.is_duplicate(self.row))
