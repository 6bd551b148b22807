"""The delivery lag that this broker has counted, for checkpoints to write.

The *lag* of a subscription in an hour counts how late messages were delivered and acknowledged
(storage/encoding/lag.py). The journal entry of each group commit has such counts. This module sums
them up, and a checkpoint writes the sums that have changed.

A *page* is such a sum, and becomes one row of the table ``lags``: the counts of one subscription
and hour from a range of journal entries of one epoch. A page that has not changed for an hour is
removed from memory. Later counts for its subscription and hour begin another page, so no page has
to be read back from the database.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

from escapement.storage.encoding.lag import HOUR_MS, Lag
from escapement.storage.state.lag_table import LagRow

# How long an unchanged page stays in memory. Most messages are acknowledged within an hour of their
# delivery.
_KEEP_MS: Final = HOUR_MS


@dataclass(slots=True)
class _Page:
    first_seq: int
    last_seq: int
    counts: dict[int, int] = field(default_factory=dict)  # by cell of a ``Tally``
    changed_ms: int = 0  # when ``take_changed`` last returned it


class LagBook:
    """The pages in memory, of all subscriptions."""

    def __init__(self) -> None:
        self._pages: dict[tuple[int, int, int], _Page] = {}  # by hour, origin id, epoch
        self._changed: set[tuple[int, int, int]] = set()

    def add(self, epoch: int, seq: int, lag: Lag) -> None:
        """Add the counts that a journal entry has for one subscription and hour.

        Args:
          epoch: the epoch of the journal entry.
          seq: the entry's number. For each subscription, the numbers of an epoch ascend.
        """
        key = (lag.hour_ms, lag.origin_id, epoch)
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = _Page(seq, seq)
        assert page.last_seq <= seq, "journal entries of a subscription arrived out of order"
        page.last_seq = seq
        counts = page.counts
        for cell, count in zip(lag.tally.cells.tolist(), lag.tally.counts.tolist(), strict=True):
            counts[cell] = counts.get(cell, 0) + count
        self._changed.add(key)

    def take_changed(self, now_ms: int, origins: Container[int]) -> list[LagRow]:
        """Return the pages that have changed since the last call, as rows to be written.

        Also remove pages that have not changed for an hour.

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
