"""The delivery lag counted by this broker, until it is in the database.

Each group commit adds to the hours of subscriptions (storage/encoding/lag.py). This module sums
these counts, and a checkpoint writes those that have changed. A *page* is a row of the table: it
stands for a range of the journal's entries of one epoch. A page that nothing was added to for a
while is closed and removed from memory. Later counts for its hour begin another page, so no page
has to be read back.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

from escapement.storage.encoding.lag import HOUR_MS, Lag
from escapement.storage.state.lag_table import LagRow

# Most messages of an hour are acknowledged within another hour.
_KEEP_MS: Final = HOUR_MS


@dataclass(slots=True)
class _Page:
    first_seq: int
    last_seq: int
    counts: dict[int, int] = field(default_factory=dict)  # by cell of the tally
    changed_ms: int = 0  # when a checkpoint last took it


class LagBook:
    """The open pages of all subscriptions."""

    def __init__(self) -> None:
        self._pages: dict[tuple[int, int, int], _Page] = {}  # by hour, origin, epoch
        self._changed: set[tuple[int, int, int]] = set()

    def add(self, epoch: int, seq: int, lag: Lag) -> None:
        """Add the lag of a journal entry; the entries of a subscription arrive in order."""
        key = (lag.hour_ms, lag.origin_id, epoch)
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = _Page(seq, seq)
        assert page.last_seq <= seq, "the lag of an earlier entry arrives after that of a later one"
        page.last_seq = seq
        counts = page.counts
        for cell, count in zip(lag.tally.cells.tolist(), lag.tally.counts.tolist(), strict=True):
            counts[cell] = counts.get(cell, 0) + count
        self._changed.add(key)

    def take_changed(self, now_ms: int, origins: Container[int]) -> list[LagRow]:
        """Return the rows that have changed since the last call, to be written.

        Args:
          origins: the origin ids of existing subscriptions; pages of others are removed.
        """
        found = []
        for key in self._changed:
            page = self._pages[key]
            page.changed_ms = now_ms
            if key[1] in origins:
                found.append(LagRow(*key, page.first_seq, page.last_seq, dict(page.counts)))
        self._changed.clear()
        self._pages = {
            key: page
            for key, page in self._pages.items()
            if key[1] in origins and abs(now_ms - page.changed_ms) < _KEEP_MS
        }
        return found

    def __len__(self) -> int:
        return len(self._pages)
