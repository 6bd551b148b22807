"""Skipping: leaving messages out of memory while ready is full of undeliverable ones.

Ready may be full of messages whose keys are busy, or whose consumer takes none. They must not block
others. When ready has been full for ``STUCK_MS``, and more is wanted than can be delivered, some of
it is removed and its slots are *skipped*: messages of these slots in the index are passed over, so
that reading reaches others. A skipped slot is *dry* when none of its messages is left in ready and
they could be delivered. Then reading begins again at the first message passed over, and takes it
in.

The subscription says when reading is stuck, which messages to remove, and which slots are dry.

Pure: times arrive as arguments.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.wait_limit import WaitLimit
from escapement.message import Bools
from escapement.sorting import lowest
from escapement.storage.index import Key
from escapement.traits import SLOTS, have_keys, key_slots

# The slot of a message without a key, where slots matter.
NO_SLOT: Final = SLOTS

# How long reading must be stuck before messages are left out, and how long a few dry slots wait for
# their next messages.
STUCK_MS: Final = 1000
# Reading is not stuck while one in this many ready messages is delivered in that time.
_FLOW_SHARE: Final = 4
# Dry slots do not wait if one in this many skipped slots is dry.
_DRY_SHARE: Final = 4

Slots = npt.NDArray[np.intp]


def slots_of(rows: Rows, whole: bool) -> Slots:
    """Return the slot of each row; rows in a slot block each other. intp[n].

    Rows without a key have ``NO_SLOT``: they block no other row.

    Args:
      whole: all rows are in one slot.
    """
    if whole:
        return np.zeros(rows.height, np.intp)
    if rows.traits is None:
        return np.full(rows.height, NO_SLOT)
    return np.where(have_keys(rows.traits), key_slots(rows.traits), NO_SLOT)


class Skipping:
    """The skipped slots of one subscription, and when to change them."""

    __slots__ = ("_delivered", "_dry", "_skipped", "_stuck", "skipped_from")

    def __init__(self) -> None:
        self.skipped_from: Key | None = None  # the lowest key that was passed over
        self._delivered = 0  # messages delivered since reading was found stuck
        self._skipped: Bools | None = None  # one more for ``NO_SLOT``, which is never skipped
        self._stuck = WaitLimit(STUCK_MS)
        self._dry = WaitLimit(STUCK_MS)

    def advance(self, now_ms: int) -> bool:
        """Advance to ``now_ms``; return whether a wait has ended."""
        stuck = self._stuck.advance(now_ms)
        return self._dry.advance(now_ms) or stuck

    def next_wake_ms(self) -> int | None:
        """Return when ``advance`` will return True; None if never."""
        return lowest((self._stuck.until_ms, self._dry.until_ms))

    # -- when to leave messages out ----------------------------------------------------

    def found_stuck(self, stuck: bool, now_ms: int) -> None:
        """Note whether reading is stuck: no room, although more is wanted than can be delivered."""
        if not stuck:
            self._stuck.end()
        elif not self._stuck.has_begun:
            self._delivered = 0
            self._stuck.is_out(now_ms)

    def delivered(self, count: int) -> None:
        """Count delivered messages."""
        self._delivered += count

    def wants_room(self, now_ms: int, limit: int) -> bool:
        """Return whether reading has been stuck for so long that room must be made.

        Args:
          limit: the most rows of a band in ready. If many of them were delivered meanwhile, there
            will be room soon.
        """
        if not self._stuck.has_begun or not self._stuck.is_out(now_ms):
            return False
        delivered, self._delivered = self._delivered, 0
        if _FLOW_SHARE * delivered >= limit:
            self._stuck.end()
            self._stuck.is_out(now_ms)
            return False
        return True

    # -- skipped slots -----------------------------------------------------------------

    @property
    def skips(self) -> bool:
        """Whether any slot is skipped."""
        return self._skipped is not None

    def skips_any(self, slots: Bools) -> bool:
        """Return whether any of these slots is skipped; ``slots`` is bool[SLOTS]."""
        return self._skipped is not None and bool((self._skipped[:-1] & slots).any())

    def pass_over(self, rows: Rows, slots: Slots) -> Rows:
        """Return the rows whose slots are not skipped; the rows are sorted by key."""
        if self._skipped is None:
            return rows
        skipped = self._skipped[slots]
        if not skipped.any():
            return rows
        self._note(rows.pick(skipped))
        return rows.pick(~skipped)

    def leave_out(self, rows: Rows, slots: Bools) -> None:
        """Note rows that were removed from ready, and skip their slots from now on.

        Args:
          rows: sorted by key.
          slots: those of the rows, and maybe others; bool[SLOTS].
        """
        self._stuck.end()
        if rows.height:
            if self._skipped is None:
                self._skipped = np.zeros(SLOTS + 1, bool)
            self._skipped[:-1] |= slots
            self._note(rows)

    def take_in_again(self, dry: Bools, now_ms: int) -> Key | None:
        """Return where to read from because skipped slots are dry; None if that can wait.

        These slots are not skipped any more.

        Args:
          dry: slots with no message in ready that could be delivered; bool[SLOTS].
        """
        if self._skipped is None:
            return None
        dry = np.append(self._skipped[:-1] & dry, False)
        count = np.count_nonzero(dry)
        # Reading passes all other due messages, so it does not begin for each slot.
        many = _DRY_SHARE * count >= np.count_nonzero(self._skipped)
        if count and not many and not self._dry.is_out(now_ms):
            return None
        self._dry.end()
        return self._read_again(dry) if count else None

    def skip_none(self) -> Key | None:
        """Stop skipping; return where to read from, None if no message was passed over."""
        return None if self._skipped is None else self._read_again(self._skipped.copy())

    def _read_again(self, slots: Bools) -> Key | None:
        assert self._skipped is not None
        self._skipped[slots] = False
        if not self._skipped.any():
            self._skipped = None
            self._dry.end()
        # Messages passed over again are noted again.
        found, self.skipped_from = self.skipped_from, None
        return found

    def _note(self, rows: Rows) -> None:
        self.skipped_from = lowest((self.skipped_from, rows.key(0)))

    def _check(self) -> None:
        """Assert every invariant."""
        assert self._skipped is None or self._skipped[:-1].any(), "no slot is skipped"
        assert self._skipped is None or not self._skipped[-1], "messages without a key are skipped"
