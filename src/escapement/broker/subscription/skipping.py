"""What is left out of memory, where ready is full of what may not go.

Ready that is full of messages whose keys are busy, or whose consumer takes nothing, must not
hold up others. When it has been full for ``STUCK_MS``, and more is wanted than may go, some of
it is taken out and its slots are *skipped*: what is in the index of such a slot is passed
over, so that reading comes to others. When a skipped slot is *dry*, because nothing of it is
left in ready although it could go, reading begins again at the first message that was passed
over, and takes it in.

The subscription says when reading is stuck, what to take out, and which slots are dry.

Pure: times arrive as arguments.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.patience import Patience
from escapement.broker.subscription.ready import Rows
from escapement.storage.index import Key
from escapement.traits import SLOTS, have_keys, key_slots

# The slot of what has none: a message without a key, where it matters of which a message is.
NO_SLOT: Final = SLOTS

# So long what is ready stays as it is although nothing of it may go and more cannot be read,
# and a skipped slot waits for its next messages.
STUCK_MS: Final = 1000
# It does not stay as it is where one in so many of it has been handed out.
_FLOW_SHARE: Final = 4
# Less, where one in so many of the skipped slots waits.
_DRY_SHARE: Final = 4

Bools = npt.NDArray[np.bool_]
Slots = npt.NDArray[np.intp]


def slots_of(rows: Rows, whole: bool) -> Slots:
    """What of these rows stands in each other's way; ``NO_SLOT`` for nothing. intp[n].

    Args:
      whole: everything does.
    """
    if whole:
        return np.zeros(rows.height, np.intp)
    if rows.traits is None:
        return np.full(rows.height, NO_SLOT)
    return np.where(have_keys(rows.traits), key_slots(rows.traits), NO_SLOT)


class Skipping:
    """See the module's docstring."""

    __slots__ = ("_dry", "_handed", "_skipped", "_stuck", "skipped_from")

    def __init__(self) -> None:
        self.skipped_from: Key | None = None  # the lowest key that was passed over
        self._handed = 0  # since reading was found stuck
        self._skipped: Bools | None = None  # with a place for what has no key, which never is
        self._stuck = Patience(STUCK_MS)
        self._dry = Patience(STUCK_MS)

    def advance(self, now_ms: int) -> bool:
        """Time has passed; returns whether there is something to look at."""
        stuck = self._stuck.advance(now_ms)
        return self._dry.advance(now_ms) or stuck

    def next_wake_ms(self) -> int | None:
        """When ``advance`` will say so."""
        times = (self._stuck.until_ms, self._dry.until_ms)
        return min((time for time in times if time is not None), default=None)

    # -- when to leave something out ---------------------------------------------------

    def found_stuck(self, stuck: bool, now_ms: int) -> None:
        """Whether nothing more can be read now, although more is wanted than may go."""
        if not stuck:
            self._stuck.end()
        elif not self._stuck.has_begun:
            self._handed = 0
            self._stuck.is_out(now_ms)

    def handed(self, count: int) -> None:
        """So many were handed out."""
        self._handed += count

    def wants_room(self, now_ms: int, limit: int) -> bool:
        """Whether reading has been stuck for so long that room is to be made.

        Args:
          limit: how many rows ready takes of a band. Where many of them were handed out
            meanwhile, there will be room soon.
        """
        if not self._stuck.has_begun or not self._stuck.is_out(now_ms):
            return False
        handed, self._handed = self._handed, 0
        if _FLOW_SHARE * handed >= limit:
            self._stuck.end()
            self._stuck.is_out(now_ms)
            return False
        return True

    # -- what is left out --------------------------------------------------------------

    @property
    def skips(self) -> bool:
        """Whether any slot is skipped."""
        return self._skipped is not None

    def skips_any(self, slots: Bools) -> bool:
        """Whether any of these is; bool[SLOTS]."""
        return self._skipped is not None and bool((self._skipped[:-1] & slots).any())

    def pass_over(self, rows: Rows, slots: Slots) -> Rows:
        """Those of rows, sorted by key, whose slots, ``NO_SLOT`` for none, are not skipped."""
        if self._skipped is None:
            return rows
        skipped = self._skipped[slots]
        if not skipped.any():
            return rows
        self._note(rows.pick(skipped))
        return rows.pick(~skipped)

    def leave_out(self, rows: Rows, slots: Bools) -> None:
        """These were taken out, and reading passes over these slots from now on.

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
        """Where to read from, because skipped slots are dry; None if it can wait.

        Such slots are skipped no longer.

        Args:
          dry: of which nothing is left in ready, and something could go; bool[SLOTS].
        """
        if self._skipped is None:
            return None
        dry = np.append(self._skipped[:-1] & dry, False)
        count = np.count_nonzero(dry)
        # Reading passes everything else that is due: not for each slot by itself.
        many = _DRY_SHARE * count >= np.count_nonzero(self._skipped)
        if count and not many and not self._dry.is_out(now_ms):
            return None
        self._dry.end()
        return self._read_again(dry) if count else None

    def skip_none(self) -> Key | None:
        """Skip no slot any longer: where to read from; None if nothing was passed over."""
        return None if self._skipped is None else self._read_again(self._skipped.copy())

    def _read_again(self, slots: Bools) -> Key | None:
        assert self._skipped is not None
        self._skipped[slots] = False
        if not self._skipped.any():
            self._skipped = None
            self._dry.end()
        # What is passed over again is noted again.
        found, self.skipped_from = self.skipped_from, None
        return found

    def _note(self, rows: Rows) -> None:
        first = Key(int(rows.due_ms[0]), int(rows.offsets[0]))
        low = self.skipped_from
        self.skipped_from = first if low is None else min(low, first)

    def _check(self) -> None:
        """Assert every invariant."""
        assert self._skipped is None or self._skipped[:-1].any(), "no slot is skipped"
        assert self._skipped is None or not self._skipped[-1], "what has no key is skipped"
