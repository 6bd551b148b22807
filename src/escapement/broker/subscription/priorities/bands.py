"""The priority bands of one subscription, and the scans that they share.

The normal band always exists; the others are created with their first message. Each band has its
own read mark, the key in the delivery order at which its next scan of the index begins. A band with
a mark is *behind* (:mod:`~escapement.broker.subscription.priorities.band`). Bands with the same
mark share a scan, because each would otherwise read the same messages.

Pure: times and keys arrive as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from escapement.broker.subscription.priorities.band import BANDS, NORMAL, Band, bands_of
from escapement.broker.subscription.priorities.ready import Rows
from escapement.sorting import lowest
from escapement.storage.index import Key

# The most expired messages that one scan reads, and that are acknowledged together.
EXPIRED_AT_ONCE: Final = 65_536


class Scan(NamedTuple):
    """A piece ``[start, stop)`` of the delivery order to read from the index for some bands.

    The scan reads about ``most`` messages and may end before ``stop``. Messages due by
    ``expired_until_ms`` have expired.
    """

    bands: list[Band]
    start: Key
    stop: Key
    most: int
    expired_until_ms: int


class Bands:
    """The bands of one subscription.

    Args:
      make: creates a band, given which band and its read mark; None for a band that is not behind.
      mark: the read mark of the normal band.
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
        """Return a band; create it if needed.

        A new band gets the normal band's read mark, because the delivery order had no message for
        the new band before that mark.
        """
        band = self._bands.get(which)
        if band is None:
            band = self._bands[which] = self._make(which, self.normal.unread_from)
        return band

    def add_all(self) -> None:
        """Create all bands, because the index may already have messages of each."""
        for which in BANDS:
            self.of(which)

    def split(self, rows: Rows) -> list[tuple[Band, Rows]]:
        """Divide rows among their bands; return each band that has some, with its rows.

        Creates bands that do not exist yet.
        """
        if rows.traits is None:
            return [(self.normal, rows)]
        bands = bands_of(rows.traits)
        of_each = [(which, bands == which) for which in BANDS]
        return [(self.of(which), rows.pick(mine)) for which, mine in of_each if mine.any()]

    # -- progress ------------------------------------------------------------------

    @property
    def are_behind(self) -> bool:
        """Whether a band is behind, so that due messages may not have been read yet."""
        return any(band.mark is not None for band in self)

    @property
    def is_reading(self) -> bool:
        """Whether a scan of some band is running."""
        return any(band.is_reading for band in self)

    @property
    def unread_from(self) -> Key | None:
        """The lowest key at which a due message may be unread; None if there is none."""
        return lowest(band.unread_from for band in self)

    def fall_behind(self, key: Key) -> None:
        """Lower the read marks to ``key``: messages from there on may not have been offered."""
        for band in self:
            band.fall_behind(key)

    def is_stuck(self, piece: int) -> bool:
        """Whether a band is behind, is not being scanned, and has less room than ``piece``."""
        return any(band.is_stuck(piece) for band in self)

    # -- scans ---------------------------------------------------------------------

    def must_read(self, wanting: list[Band]) -> bool:
        """Return whether deliveries must wait for unread messages that may come first.

        Args:
          wanting: the bands that are to be scanned; bands being scanned count, too.
        """
        return any(band.may_precede for band in self if band.is_reading or band in wanting)

    def scan(self, wanting: list[Band], piece: int, most: int, until_ms: int, stop: Key) -> Scan:
        """Return the next scan: from the lowest read mark on, for all bands that have this mark.

        The scan ends at the next higher mark, where other bands can join.

        Args:
          wanting: the bands that are to be scanned; at least one.
          piece: for how many messages a band must have room to begin a scan.
          most: the most messages to read.
          until_ms: messages due by then have expired.
          stop: the key at which the scan ends at the latest.
        """
        start = min(band.mark for band in wanting if band.mark is not None)
        here = [band for band in self if band.mark == start and not band.is_reading]
        if start.due_ms <= until_ms:  # expired messages need no room, and are read separately
            return Scan(here, start, Key(until_ms + 1, 0), EXPIRED_AT_ONCE, until_ms)
        # A band that is left out must scan the same piece later. So bands with only a little room
        # join, and the scan reads fewer messages.
        bands = [band for band in here if band in wanting or band.may_join(piece)]
        most = min(most, *(band.room for band in bands))
        ahead = [band.mark for band in self if band.mark is not None and band.mark > start]
        return Scan(bands, start, min([max(stop, start), *ahead]), most, until_ms)
