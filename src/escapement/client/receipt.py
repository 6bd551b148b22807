"""What a producer gets back: a promise of a receipt, a receipt, a column of them."""

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
    """One message is durable.

    ``duplicate`` says that it had been stored before: by an earlier attempt whose receipt was
    lost, or as another message with the same dedup key, whose ``id`` this is. The ``id`` may
    then not be known.
    """

    id: MessageId | None
    duplicate: bool = False


class Receipts:
    """A batch is durable: a receipt for each message, in columns."""

    __slots__ = ("duplicates", "offsets", "topic")

    @classmethod
    def of(cls, topic: str, parcels: list[Parcel]) -> Receipts:
        """The receipts of parcels that are settled, one below the other."""
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
        self.offsets = offsets  # -1 where not known
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
    """A message on its way; ``await`` it for its receipt."""

    topic: str
    parcel: Parcel
    row: int

    def __await__(self) -> Generator[Any, Any, Receipt]:
        return self.wait().__await__()

    async def wait(self) -> Receipt:
        """The receipt.

        Raises:
          Disconnected: if none came in time; whether it is stored is not known.
          EscapementError: if it was refused: it is not stored.
        """
        parcel = self.parcel
        await parcel.wait()
        if parcel.error is not None:
            raise copy(parcel.error)
        offset = parcel.offset_of(self.row)
        id = MessageId(self.topic, offset) if offset >= 0 else None
        return Receipt(id, parcel.is_duplicate(self.row))
