"""Rows of the log that were read lately, for whoever asks for single messages next.

Messages that are changed one after the other often lie in the same rows: they were published
together. A row never changes, so one that was read serves as long as the log has it.

Kept from a thread, found from the event loop: what is kept is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from escapement.message import Int64s
from escapement.storage.log.logtable import RowKey
from escapement.storage.log.published import Published

# So many, of so many bytes together, those read last. All of them are looked at each time.
KEPT_ROWS: Final = 64
KEPT_BYTES: Final = 8 << 20


class Kept(NamedTuple):
    """A row that states its messages for the first time, and what it holds."""

    key: RowKey
    content: Published


class KeptRows:
    """See the module's docstring."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: tuple[Kept, ...] = ()

    def keep(self, rows: Sequence[Kept]) -> None:
        """These were just read."""
        rows = [row for row in rows if row.key.size_bytes <= KEPT_BYTES]
        keys = {row.key for row in rows}
        kept: list[Kept] = []
        left = KEPT_BYTES
        for row in (*reversed(rows), *(row for row in self._rows if row.key not in keys)):
            left -= row.key.size_bytes
            if len(kept) == KEPT_ROWS or left < 0:
                break
            kept.append(row)
        self._rows = tuple(kept)

    def find(
        self, topic_id: int, offsets: Int64s, generations: Collection[int]
    ) -> Published | None:
        """These messages, if one kept row has all of them; None otherwise.

        Args:
          offsets: ascending; int64[n], one at least.
          generations: those that the log has.
        """
        first, last = int(offsets[0]), int(offsets[-1])
        for key, content in self._rows:
            low = key.base_offset
            if key.topic_id == topic_id and low <= first and last < low + key.message_count:
                return content.of_these(offsets) if key.generation in generations else None
        return None
