"""The bands of one subscription: which there are, and what they read next, together if they can.

The normal one is there from the beginning, the others once there is a message of theirs. Each
reads for itself (:mod:`~escapement.broker.subscription.band`); those that are equally far read
together, or what lies there would be read once for each.

Pure: times and keys arrive as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from escapement.broker.subscription.band import BANDS, NORMAL, Band, bands_of, rows_below
from escapement.broker.subscription.ready import Rows
from escapement.storage.index import Key

# Expired messages that are let go in one step, and one acknowledgement.
EXPIRED_AT_ONCE: Final = 65_536


class Scan(NamedTuple):
    """A piece of the delivery order that bands read together: ``[start, stop)``.

    Of it, about ``most`` messages; what was due by ``expired_until_ms`` has expired.
    """

    bands: list[Band]
    start: Key
    stop: Key
    most: int
    expired_until_ms: int


class Bands:
    """See the module's docstring.

    Args:
      make: makes a band, which begins to read at a key; with None nothing lies behind it.
      mark: where the normal band begins.
    """

    __slots__ = ("_bands", "_make", "normal")

    def __init__(self, make: Callable[[int, Key | None], Band], mark: Key) -> None:
        self._make = make
        self.normal = make(NORMAL, mark)
        self._bands = {NORMAL: self.normal}

    def __len__(self) -> int:
        return len(self._bands)

    def __iter__(self) -> Iterator[Band]:
        return iter(self._bands.values())

    def of(self, which: int) -> Band:
        """A band. Where the normal one has been, there was nothing for a new one."""
        band = self._bands.get(which)
        if band is None:
            band = self._bands[which] = self._make(which, self.normal.unread_from)
        return band

    def add_all(self) -> None:
        """There may be messages of any band."""
        for which in BANDS:
            self.of(which)

    def split(self, rows: Rows) -> list[tuple[Band, Rows]]:
        """The rows of each band that has any; a new one begins where the normal one has read to."""
        if rows.traits is None:
            return [(self.normal, rows)]
        bands = bands_of(rows.traits)
        of_each = [(which, bands == which) for which in BANDS]
        return [(self.of(which), rows.pick(mine)) for which, mine in of_each if mine.any()]

    def outline(self, rows: Rows) -> Rows:
        """Of rows sorted by key those that say how far each band is behind, if they are left.

        They are the first of each band, and the first behind what is being read.
        """
        untils = {band.scan_until for band in self}
        starts = {0, *(rows_below(rows, until) for until in untils if until is not None)}
        if rows.traits is None:
            return rows.pick(np.array(sorted(starts - {rows.height})))
        bands = bands_of(rows.traits)
        at = set()
        for start in starts:
            for which in BANDS:
                mine = bands[start:] == which
                if mine.any():
                    at.add(start + int(mine.argmax()))
        return rows.pick(np.array(sorted(at)))

    # -- how far they have read ----------------------------------------------------

    @property
    def are_behind(self) -> bool:
        """Whether something is due that has not been read yet."""
        return any(band.mark is not None for band in self)

    @property
    def is_reading(self) -> bool:
        """Whether one is being read."""
        return any(band.is_reading for band in self)

    @property
    def unread_from(self) -> Key | None:
        """The lowest key that may not have been looked at; None if there is none."""
        return min((b.unread_from for b in self if b.unread_from is not None), default=None)

    def fall_behind(self, key: Key) -> None:
        """Everything from ``key`` on may be in the index without having been offered."""
        for band in self:
            band.fall_behind(key)

    def is_stuck(self, piece: int) -> bool:
        """Whether one is behind, and has less room than ``piece``."""
        return any(band.is_stuck(piece) for band in self)

    # -- what to read ----------------------------------------------------------------

    def must_read(self, wanting: list[Band]) -> bool:
        """Whether what these want to read, or is being read, may come before all that is ready."""
        return any(band.may_precede for band in self if band.is_reading or band in wanting)

    def scan(self, wanting: list[Band], piece: int, most: int, until_ms: int, stop: Key) -> Scan:
        """What to read next: where the first of those is that want to, and with whom.

        Those behind read up to where others are.

        Args:
          wanting: one at least.
          piece: how much room is worth a scan of its own.
          most: so many messages at most.
          until_ms: what was due by then has expired.
          stop: where to stop at the latest.
        """
        start = min(band.mark for band in wanting if band.mark is not None)
        here = [band for band in self if band.mark == start and not band.is_reading]
        if start.due_ms <= until_ms:  # what has expired needs no room, and is read by itself
            return Scan(here, start, Key(until_ms + 1, 0), EXPIRED_AT_ONCE, until_ms)
        # What one alone reads, others read again: who has a little room, has it read less now.
        bands = [band for band in here if band in wanting or band.may_join(piece)]
        most = min(most, *(band.room for band in bands))
        ahead = [band.mark for band in self if band.mark is not None and band.mark > start]
        return Scan(bands, start, min([max(stop, start), *ahead]), most, until_ms)
