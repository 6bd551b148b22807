"""Entries of a timing wheel, stored as columns, and how they are sorted.

Entries are sorted by time, then by id. Sorting is most of the cost of returning due entries. So
``sorted`` uses the cheapest of several algorithms that suits the values. All of them produce the
same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp] | npt.NDArray[np.bool_]

# Up to this many entries, the general algorithm costs less than a search for a cheaper one.
_FEW: Final = 1500
# numpy sorts 16-bit integers by radix: in linear time, and four times faster than by comparison.
# Times that span less than this many milliseconds are sorted as such integers.
_RADIX_SPAN: Final = 1 << 16
# The bits of a non-negative int64, which must have room for a time and an id to sort by both.
_KEY_BITS: Final = 63


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Entries in columns: each has a time, an id and, optionally, a tag and a label.

    All columns have one row per entry. The user of the wheel decides what tags and labels mean. The
    receiver of entries owns their arrays: no other code changes them.
    """

    when_ms: Int64s
    ids: Int64s
    tags: Int64s | None = None
    labels: Int64s | None = None

    def __len__(self) -> int:
        return len(self.when_ms)

    @property
    def size_bytes(self) -> int:
        """The size of the columns in bytes."""
        used = [column for column in (self.tags, self.labels) if column is not None]
        return self.when_ms.nbytes + self.ids.nbytes + sum(column.nbytes for column in used)

    def take(self, rows: Rows) -> Entries:
        """Return the entries in ``rows``, given by index (in that order) or as a boolean mask."""
        return Entries(
            self.when_ms[rows],
            self.ids[rows],
            None if self.tags is None else self.tags[rows],
            None if self.labels is None else self.labels[rows],
        )

    def slice(self, low: int, high: int) -> Entries:
        """Return the entries in the rows from ``low`` to below ``high``, as views; O(1)."""
        return Entries(
            self.when_ms[low:high],
            self.ids[low:high],
            None if self.tags is None else self.tags[low:high],
            None if self.labels is None else self.labels[low:high],
        )

    def copy(self) -> Entries:
        """Return the same entries in new arrays."""
        tags = None if self.tags is None else self.tags.copy()
        labels = None if self.labels is None else self.labels.copy()
        return Entries(self.when_ms.copy(), self.ids.copy(), tags, labels)

    def owned(self) -> Entries:
        """Return the same entries, copied if their arrays are views of other arrays.

        A view would keep the memory of the whole other array alive.
        """
        columns = (self.when_ms, self.ids, self.tags, self.labels)
        views = any(column is not None and column.base is not None for column in columns)
        return self.copy() if views else self

    @staticmethod
    def concat(parts: Sequence[Entries]) -> Entries:
        """Join several entries to one, in order.

        If only some parts have tags or labels, those of the others are 0.
        """
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return NONE
        return Entries(
            np.concatenate([part.when_ms for part in parts]),
            np.concatenate([part.ids for part in parts]),
            _concat_used([(len(part), part.tags) for part in parts]),
            _concat_used([(len(part), part.labels) for part in parts]),
        )

    def sorted(self) -> Entries:
        """Return the entries sorted by time, then id. Equal entries keep their order.

        O(n) if they are sorted already. Also O(n) if the ids ascend and the times span less than
        65,536 ms, as in a slot of a wheel when ids grow in order of arrival. O(n log n) otherwise.
        """
        if len(self) < 2:
            return self
        if len(self) <= _FEW:
            return self.take(np.lexsort((self.ids, self.when_ms)))
        if self._in_order():
            return self
        first_ms, first_id = int(self.when_ms.min()), int(self.ids.min())
        span_ms = int(self.when_ms.max()) - first_ms
        if span_ms < _RADIX_SPAN and bool((self.ids[1:] >= self.ids[:-1]).all()):
            digits = (self.when_ms - first_ms).astype(np.uint16)
            return self.take(np.argsort(digits, kind="stable"))
        id_bits = (int(self.ids.max()) - first_id).bit_length()
        if span_ms.bit_length() + id_bits <= _KEY_BITS:
            keys = self.when_ms - first_ms
            keys <<= id_bits
            keys |= self.ids - first_id
            return self.take(np.argsort(keys, kind="stable"))
        return self.take(np.lexsort((self.ids, self.when_ms)))

    def _in_order(self) -> bool:
        """Return whether the entries are sorted by time, then id."""
        steps = np.diff(self.when_ms)
        if int(steps.min()) < 0:
            return False
        ties = np.flatnonzero(steps == 0)
        return bool((self.ids[ties] <= self.ids[ties + 1]).all())


def _concat_used(columns: list[tuple[int, Int64s | None]]) -> Int64s | None:
    if all(column is None for _, column in columns):
        return None
    return np.concatenate([np.zeros(n, np.int64) if c is None else c for n, c in columns])


NONE: Final = Entries(np.zeros(0, np.int64), np.zeros(0, np.int64))
