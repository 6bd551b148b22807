"""How long a delivered message may go unacknowledged, and when it is tried again.

The first wait is ``ack_wait_ms``, or ``min_backoff_ms`` where messages may go
unacknowledged without end; each further attempt doubles it, within
``min_backoff_ms`` and ``max_backoff_ms``. Up to ``jitter`` of the wait is added, so
that a herd that failed together does not return together. No wait is longer than
``max_backoff_ms``, jitter and all: what is to wait so long waits up to that share less,
but never less than the first wait. The exponent is clamped:
the wait grows monotonely for any number of attempts and never overflows. V4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.message import Int64s

# Doubling stops here: 2^31 times a wait of a millisecond is 24 days, of a second 68 years.
_MAX_DOUBLINGS: Final = 31
# No wait is longer, however it was configured: it must stay addable to a time.
CEILING_MS: Final = 3650 * 86_400_000

DEFAULT_ACK_WAIT_MS: Final = 30_000
# Into so many common moments the span of the jitter is divided: few enough that a great
# many messages meet, and many enough that they do not all come at once.
_PORTIONS: Final = 16


@dataclass(frozen=True, slots=True)
class BackOff:
    """The waiting policy of one consumer or subscription; all times in milliseconds."""

    ack_wait_ms: int = DEFAULT_ACK_WAIT_MS
    min_backoff_ms: int = 0
    max_backoff_ms: int = 0  # 0: no upper bound but the ceiling
    jitter: float = 0.33

    def wait_ms(self, attempts: Int64s, chance: npt.NDArray[np.float64] | float) -> Int64s:
        """How long to wait after each attempt (1 is the first); int64[n].

        Args:
          attempts: how often each message has been delivered, >= 1; int64[n].
          chance: the share of the jitter to add, 0 to 1; float[n] or one for all.
        """
        bounded = self._bounded_ms(attempts)
        longer = bounded * (1.0 + self.jitter * np.asarray(chance))
        waits: Int64s = np.minimum(longer, self._upper_ms).astype(np.int64)
        return waits

    def until_ms(
        self, now_ms: int, attempts: Int64s, chance: npt.NDArray[np.float64] | float
    ) -> Int64s:
        """Until when to wait, from now on; int64[n]. Arguments as for ``wait_ms``.

        Where the jitter leaves a choice, messages meet at common moments: what comes back
        together is read from disk together, and fires fewer timers.
        """
        until = now_ms + self.wait_ms(attempts, chance)
        if not np.ndim(chance):
            return until
        bounded = self._bounded_ms(attempts)
        step = np.maximum(np.ceil(bounded * (self.jitter / _PORTIONS)).astype(np.int64), 1)
        met: Int64s = until // step * step
        met += step * (met < now_ms + bounded.astype(np.int64))
        bound: Int64s = np.minimum(met, now_ms + self._upper_ms)
        return bound

    @property
    def first_wait_ms(self) -> int:
        """``wait_ms`` after a first attempt, without jitter."""
        wait_ms = self.ack_wait_ms or self.min_backoff_ms
        return min(max(wait_ms, self.min_backoff_ms), self._upper_ms)

    @property
    def _upper_ms(self) -> int:
        return min(self.max_backoff_ms or CEILING_MS, CEILING_MS)

    def _bounded_ms(self, attempts: Int64s) -> npt.NDArray[np.float64]:
        doublings = np.clip(attempts - 1, 0, _MAX_DOUBLINGS).astype(np.float64)
        base = (self.ack_wait_ms or self.min_backoff_ms) * np.exp2(doublings)
        # There is room for the jitter above, as far as the first wait allows.
        least = min(self.min_backoff_ms, self._upper_ms)
        first = min(max(self.ack_wait_ms, self.min_backoff_ms), self._upper_ms)
        most = max(self._upper_ms / (1.0 + self.jitter), first)
        bounded: npt.NDArray[np.float64] = np.clip(base, least, most)
        return bounded
