"""A search index of in-flight messages: the delivery and row of each, built on demand.

Acknowledgements in the order of delivery need no search (broker/subscription/delivery/delivery.py).
All other messages are found in a hash map. A search first adds the messages of the deliveries since
the last search. The first search with a million messages in flight takes about 100 ms.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final

import numpy as np

from escapement.broker.subscription.delivery.delivery import Delivery, DeliveryPart
from escapement.broker.subscription.number_map import NOWHERE, NumberMap
from escapement.message import Int64s

# The map may have this many rows of finished messages, 64 bytes each.
_SPARE_ROWS: Final = 65_536
# A delivery has fewer than 2**24 rows; usually it has some thousands.
_ROW_BITS: Final = 24


class DeliveryLookup:
    """Finds the rows of in-flight messages.

    Args:
      deliveries: the live deliveries by id, ascending.
    """

    def __init__(self, deliveries: dict[int, Delivery]) -> None:
        self._deliveries = deliveries
        self._positions = NumberMap()  # by offset: delivery id << _ROW_BITS | row
        self._known = 0  # the id of the last delivery in the map

    def find(self, offsets: Int64s) -> list[DeliveryPart]:
        """Return the live rows of these messages, by delivery, the oldest delivery first."""
        self._learn()
        positions = np.sort(self._positions.get(offsets))
        positions = positions[np.diff(positions, prepend=NOWHERE) > 0]  # each once; none is missing
        if not len(positions):
            return []
        ids = positions >> _ROW_BITS
        firsts = np.flatnonzero(np.diff(ids, prepend=NOWHERE))
        pieces = np.split(positions & ((1 << _ROW_BITS) - 1), firsts[1:])
        found = zip(ids[firsts].tolist(), pieces, strict=True)
        parts = [self._deliveries[id].of(rows) for id, rows in found if id in self._deliveries]
        return [one for one in parts if one.height]

    def tidy(self, rows: int) -> None:
        """Empty the map if it has far more rows than the deliveries have now.

        Args:
          rows: the number of rows of all deliveries.
        """
        if len(self._positions) > 2 * rows + _SPARE_ROWS:
            self._positions = NumberMap()
            self._known = 0

    def _learn(self) -> None:
        """Add the live rows of new deliveries to the map.

        They replace older rows of the same messages, which are not alive any more.
        """
        ids = list(takewhile(lambda id: id > self._known, reversed(self._deliveries)))
        if not ids:
            return
        self._known = ids[0]
        offsets, positions = [], []
        for id in ids:
            delivery = self._deliveries[id]
            at = np.flatnonzero(delivery.alive)
            offsets.append(delivery.rows.offsets[at])
            positions.append((id << _ROW_BITS) + at)
        self._positions.put(np.concatenate(offsets), np.concatenate(positions))
