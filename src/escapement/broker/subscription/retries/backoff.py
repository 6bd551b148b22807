"""How long a delivered message may stay unacknowledged, and when it is retried.

The first wait is ``ack_wait_ms``, or ``min_backoff_ms`` if messages may stay unacknowledged
forever. Each further attempt doubles the wait, within ``min_backoff_ms`` and ``max_backoff_ms``. Up
to ``jitter`` of the wait is added, so that messages that failed together do not return together.

No wait exceeds ``max_backoff_ms``, jitter included. To leave room for the jitter, the doubled wait
stops at ``max_backoff_ms / (1 + jitter)``, but never below the first wait. The exponent is clamped,
so the wait grows monotonically for any number of attempts and never overflows. V4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.message import Int64s

# Doubling stops here: 2^31 times a millisecond is 24 days, 2^31 seconds are 68 years.
_MAX_DOUBLINGS: Final = 31
# The longest wait, whatever is configured: the sum of a time and a wait must not overflow.
CEILING_MS: Final = 3650 * 86_400_000

DEFAULT_ACK_WAIT_MS: Final = 30_000
# Within the range of the jitter, waits end at this many common moments: few enough that many
# messages return together, enough that they do not all return at once.
_PORTIONS: Final = 16


@dataclass(frozen=True, slots=True)
class BackOff:
    """The waiting policy of one consumer or subscription; all times in milliseconds."""

    ack_wait_ms: int = DEFAULT_ACK_WAIT_MS
    min_backoff_ms: int = 0
    max_backoff_ms: int = 0  # 0: no upper bound except ``CEILING_MS``
    jitter: float = 0.33

    def wait_ms(self, attempts: Int64s, chance: npt.NDArray[np.float64] | float) -> Int64s:
        """Return how long to wait for each message's next attempt; int64[n].

        Args:
          attempts: how often each message has been delivered, >= 1; int64[n].
          chance: the share of the jitter to add, 0 to 1; float[n] or one for all.
        """
        bounded = self._bounded_ms(attempts)
        longer = bounded * (1.0 + self.jitter * np.asarray(chance))
        waits: Int64s = np.minimum(longer, self._upper_ms).astype(np.int64)
        return waits

    def until_ms(self, now_ms: int, attempts: Int64s, chance: npt.NDArray[np.float64]) -> Int64s:
        """Return the end of each wait that starts now; int64[n].

        Other arguments are as for ``wait_ms``. The ends are rounded to common moments within the
        range of the jitter. Messages that return together are read from disk together, and need
        fewer timers.
        """
        until = now_ms + self.wait_ms(attempts, chance)
        bounded = self._bounded_ms(attempts)
        step = np.maximum(np.ceil(bounded * (self.jitter / _PORTIONS)).astype(np.int64), 1)
        met: Int64s = until // step * step
        met += step * (met < now_ms + bounded.astype(np.int64))
        bound: Int64s = np.minimum(met, now_ms + self._upper_ms)
        return bound

    @property
    def first_wait_ms(self) -> int:
        """The wait after the first attempt, without jitter."""
        wait_ms = self.ack_wait_ms or self.min_backoff_ms
        return min(max(wait_ms, self.min_backoff_ms), self._upper_ms)

    @property
    def _upper_ms(self) -> int:
        return min(self.max_backoff_ms or CEILING_MS, CEILING_MS)

    def _bounded_ms(self, attempts: Int64s) -> npt.NDArray[np.float64]:
        doublings = np.clip(attempts - 1, 0, _MAX_DOUBLINGS).astype(np.float64)
        base = (self.ack_wait_ms or self.min_backoff_ms) * np.exp2(doublings)
        # Leave room for the jitter, but do not go below the first wait.
        least = min(self.min_backoff_ms, self._upper_ms)
        first = min(max(self.ack_wait_ms, self.min_backoff_ms), self._upper_ms)
        most = max(self._upper_ms / (1.0 + self.jitter), first)
        bounded: npt.NDArray[np.float64] = np.clip(base, least, most)
        return bounded
