"""What holds a subscription's dispatch back: a pause of it or of its topic, rate, in flight.

Asked how many messages may go now, it answers, and remembers when more may: that is when
its subscription wants to be woken. Where the policy sets no limit it costs a comparison for
each round of dispatch.

At a rate, messages are granted by the *grain*, what comes together in 10 ms: a wake for
each token would cost more than the messages.

Pure: the time arrives as an argument. A pause is a moment of the wall clock, so setting the
clock back before it pauses again.
"""

from __future__ import annotations

from typing import Final

from escapement.broker.tokenbucket import TokenBucket
from escapement.storage.policy import SubscriptionPolicy
from escapement.storage.rule import FOREVER_MS

_GRAIN_MS: Final = 10


class Throttle:
    """See the module's docstring."""

    __slots__ = ("_bucket", "_policy", "_wake_ms", "topic_paused_until_ms")

    def __init__(self, policy: SubscriptionPolicy) -> None:
        self.topic_paused_until_ms = 0
        self._policy = policy
        self._bucket: TokenBucket | None = None
        self._wake_ms: int | None = None

    @property
    def paused_until_ms(self) -> int:
        """Nothing is handed out before this moment."""
        return max(self._policy.paused_until_ms, self.topic_paused_until_ms)

    def is_paused(self, now_ms: int) -> bool:
        """Whether nothing may be handed out now, whatever was granted before."""
        return now_ms < self.paused_until_ms

    def set_policy(self, policy: SubscriptionPolicy) -> None:
        """Go by another policy from now on; what was spent at the old rate stays so."""
        self._policy = policy
        self._wake_ms = None
        if not policy.max_rate:
            self._bucket = None

    def grant(self, wanted: int, in_flight: int, now_ms: int) -> int:
        """How many of ``wanted`` messages may be handed out now.

        Args:
          in_flight: how many are in consumers' hands.
        """
        if self.is_paused(now_ms):
            until_ms = self.paused_until_ms
            self._wake_ms = None if until_ms == FOREVER_MS else until_ms
            return 0
        most = self._policy.max_in_flight
        if most:
            wanted = max(min(wanted, most - in_flight), 0)
        if self._policy.max_rate and wanted:
            return self._at_rate(self._policy.max_rate, wanted, now_ms)
        return wanted

    def _at_rate(self, rate: float, wanted: int, now_ms: int) -> int:
        if self._bucket is None:
            self._bucket = TokenBucket(rate, now_ms)
        self._bucket.set_rate(rate, now_ms)
        worthwhile = min(wanted, max(1, int(rate * _GRAIN_MS / 1000)))
        there = self._bucket.available(now_ms)
        if there < worthwhile:
            self._wake_ms = now_ms + self._bucket.wait_ms(worthwhile, now_ms)
            return 0
        return min(wanted, there)

    def handed_over(self, count: int, now_ms: int) -> None:
        """So many of what was granted went."""
        if self._bucket is not None:
            self._bucket.spend(count, now_ms)

    def advance(self, now_ms: int) -> bool:
        """Time has passed; returns whether more may go now."""
        if self._wake_ms is None or now_ms < self._wake_ms:
            return False
        self._wake_ms = None
        return True

    def next_wake_ms(self) -> int | None:
        """When more may be handed out than was granted last; None for nothing to wait for."""
        return self._wake_ms
