"""Skipping: leaving messages in the index while ready is full of undeliverable ones.

Ready may be full of messages whose keys are busy, or whose consumer takes none. They must not block
others. Reading is *stuck* if ready has no room although consumers want more messages than can be
delivered. When reading has been stuck for ``STUCK_MS``, some ready messages are removed and their
slots are *skipped*: scans of the index pass over messages of these slots, and reach others. (A
*slot* is a 16-bit hash of a message's key.)

A skipped slot is *dry* when none of its messages is left in ready, and its messages could be
delivered. Then the slot is no longer skipped, and the next scan begins at the first message that
was passed over.

The subscription decides whether reading is stuck, which messages to remove, and which slots are
dry.

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

# The slot that stands for messages without a key; it is above all real slots.
NO_SLOT: Final = SLOTS

# How long reading must be stuck before slots are skipped, and how long a few dry slots wait until
# they are scanned again.
STUCK_MS: Final = 1000
# Reading is not stuck if this share of ready (a quarter) was delivered in that time.
_FLOW_SHARE: Final = 4
# Dry slots are scanned again at once if this share of the skipped slots (a quarter) is dry.
_DRY_SHARE: Final = 4

Slots = npt.NDArray[np.intp]


def slots_of(rows: Rows, whole: bool) -> Slots:
    """Return the slot of each row; intp[n].

    Rows without a key have ``NO_SLOT``.

    Args:
      whole: whether the whole topic is kept in order, so that all rows are in slot 0.
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
        self._skipped: Bools | None = None  # by slot; False for the last one, ``NO_SLOT``
        self._stuck = WaitLimit(STUCK_MS)
        self._dry = WaitLimit(STUCK_MS)

    def advance(self, now_ms: int) -> bool:
        """Advance to ``now_ms``; return whether slots may now be skipped or scanned again."""
        stuck = self._stuck.advance(now_ms)
        return self._dry.advance(now_ms) or stuck

    def next_wake_ms(self) -> int | None:
        """Return when ``advance`` will return True; None if never."""
        return lowest((self._stuck.until_ms, self._dry.until_ms))

    # -- when to leave messages out ----------------------------------------------------

    def found_stuck(self, stuck: bool, now_ms: int) -> None:
        """Note whether reading is stuck now; see the module docstring."""
        if not stuck:
            self._stuck.end()
        elif not self._stuck.has_begun:
            self._delivered = 0
            self._stuck.is_out(now_ms)

    def delivered(self, count: int) -> None:
        """Count messages that were delivered."""
        self._delivered += count

    def wants_room(self, now_ms: int, limit: int) -> bool:
        """Return whether reading has been stuck for so long that room must be made in ready.

        Returns False if many messages were delivered meanwhile, because there will be room soon.

        Args:
          limit: the most rows of a band in ready.
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
        """Return the rows whose slots are not skipped; note the others as passed over.

        Args:
          rows: sorted by ``(due_ms, offset)``.
          slots: the slot of each row.
        """
        if self._skipped is None:
            return rows
        skipped = self._skipped[slots]
        if not skipped.any():
            return rows
        self._note(rows.pick(skipped))
        return rows.pick(~skipped)

    def leave_out(self, rows: Rows, slots: Bools) -> None:
        """Skip slots from now on, after rows of them were removed from ready.

        Args:
          rows: the removed rows, sorted by ``(due_ms, offset)``; they count as passed over.
          slots: the slots to skip; they include those of the rows; bool[SLOTS].
        """
        self._stuck.end()
        if rows.height:
            if self._skipped is None:
                self._skipped = np.zeros(SLOTS + 1, bool)
            self._skipped[:-1] |= slots
            self._note(rows)

    def take_in_again(self, dry: Bools, now_ms: int) -> Key | None:
        """Stop skipping dry slots, if it is time; return the key at which to scan again.

        Returns None if nothing is to be scanned again now.

        Args:
          dry: the slots that have no message in ready and could deliver one; bool[SLOTS].
        """
        if self._skipped is None:
            return None
        dry = np.append(self._skipped[:-1] & dry, False)
        count = np.count_nonzero(dry)
        # A scan passes all other due messages again, so it is not worth it for a single slot.
        many = _DRY_SHARE * count >= np.count_nonzero(self._skipped)
        if count and not many and not self._dry.is_out(now_ms):
            return None
        self._dry.end()
        return self._read_again(dry) if count else None

    def skip_none(self) -> Key | None:
        """Stop skipping all slots; return the key at which to scan again, None if there is none."""
        return None if self._skipped is None else self._read_again(self._skipped.copy())

    def _read_again(self, slots: Bools) -> Key | None:
        assert self._skipped is not None
        self._skipped[slots] = False
        if not self._skipped.any():
            self._skipped = None
            self._dry.end()
        # If the scan passes over messages again, it notes them again.
        found, self.skipped_from = self.skipped_from, None
        return found

    def _note(self, rows: Rows) -> None:
        self.skipped_from = lowest((self.skipped_from, rows.key(0)))

    def _check(self) -> None:
        """Assert every invariant."""
        assert self._skipped is None or self._skipped[:-1].any(), "no slot is skipped"
        assert self._skipped is None or not self._skipped[-1], "messages without a key are skipped"
