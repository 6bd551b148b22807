"""A search index of in-flight messages: the delivery and row of each, built on demand.

Acknowledgements in the order of delivery need no search (broker/subscription/delivery/delivery.py).
For all others there are *runs*: columns of ascending offsets, with the delivery and row of each.
Each delivery is added to a run by the first search after it. Runs of similar size are merged, as in
a log-structured tree, and rows of finished deliveries are removed then. So the cost of a search
depends on the number of offsets sought and of runs, not of deliveries. The first search with a
million messages in flight takes about 40 ms.

If an offset was delivered several times, the newest delivery is first in a run and is the one
found: no older row can be alive.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.delivery.delivery import Delivery, Share
from escapement.message import Int64s
from escapement.storage.index.keys import sorted_order

# This many finished rows are tolerated: 16 bytes each.
_SPARE_ROWS: Final = 65_536
# A delivery has fewer than 2**24 rows: usually some thousands.
_ROW_BITS: Final = 24


class _Run(NamedTuple):
    """Columns of equal height."""

    offsets: Int64s  # ascending
    places: Int64s  # delivery and row, packed

    @property
    def deliveries(self) -> Int64s:
        return self.places >> _ROW_BITS

    def pick(self, which: Int64s | npt.NDArray[np.bool_]) -> _Run:
        return _Run(*(column[which] for column in self))


_NOTHING = _Run(np.zeros(0, np.int64), np.zeros(0, np.int64))


class DeliveryLookup:
    """Finds the rows of in-flight messages.

    Args:
      deliveries: the live deliveries by id, ascending.
    """

    def __init__(self, deliveries: dict[int, Delivery]) -> None:
        self._deliveries = deliveries
        self._runs: list[_Run] = []
        self._known = 0  # the id of the last delivery in a run

    def find(self, offsets: Int64s) -> list[Share]:
        """Return the live rows of these ascending offsets, by delivery."""
        self._learn()
        parts = []
        for run in self._runs:
            at = np.minimum(np.searchsorted(run.offsets, offsets), len(run.offsets) - 1)
            parts.append(run.pick(at[run.offsets[at] == offsets]))
        found = _concat(parts) if parts else _NOTHING
        if not len(found.places):
            return []
        found = found.pick(np.argsort(found.deliveries, kind="stable"))
        ids, firsts = np.unique(found.deliveries, return_index=True)
        rows = found.places & ((1 << _ROW_BITS) - 1)
        pieces = zip(ids.tolist(), np.split(rows, firsts[1:]), strict=True)
        shares = [self._deliveries[id].of(rows) for id, rows in pieces if id in self._deliveries]
        return [one for one in shares if one.height]

    def tidy(self, rows: int) -> None:
        """Drop all runs if they have far more rows than the deliveries now."""
        if sum(len(run.places) for run in self._runs) > 2 * rows + _SPARE_ROWS:
            self._runs.clear()
            self._known = 0

    def _learn(self) -> None:
        """Add new deliveries, and merge runs."""
        fresh = []
        for id in reversed(self._deliveries):
            if id <= self._known:
                break
            fresh.append(id)
        if not fresh:
            return
        self._known = fresh[0]
        self._runs.append(_sorted([self._rows_of(id) for id in fresh]))
        while len(self._runs) > 1 and len(self._runs[-2].places) < 2 * len(self._runs[-1].places):
            older, newer = (self._living(run) for run in self._runs[-2:])
            merged = _sorted([newer, older])
            self._runs[-2:] = [merged] if len(merged.places) else []

    def _rows_of(self, id: int) -> _Run:
        offsets = self._deliveries[id].rows.offsets
        assert len(offsets) <= 1 << _ROW_BITS, "a delivery has too many rows"
        first = id << _ROW_BITS
        return _Run(offsets, np.arange(first, first + len(offsets)))

    def _living(self, run: _Run) -> _Run:
        there = np.fromiter(self._deliveries, np.int64, len(self._deliveries))
        return run.pick(np.isin(run.deliveries, there))


def _concat(runs: list[_Run]) -> _Run:
    return _Run(*(np.concatenate(columns) for columns in zip(*runs, strict=True)))


def _sorted(runs: list[_Run]) -> _Run:
    run = _concat(runs)
    return run.pick(sorted_order(run.offsets, np.arange(len(run.offsets))))
