"""Limits on a subscription's deliveries: a pause, a rate, and a number of messages in flight.

A pause may be set on the subscription or on its topic. ``grant`` returns how many messages may be
delivered now, and remembers when to wake the subscription for more. A policy without limits costs
one comparison for each round of deliveries.

Under a rate limit, the subscription waits until it may deliver the messages of a *grain* of 10 ms.
Waking up for each single message would cost more than its delivery.

Pure: the time arrives as an argument. A pause ends at a wall-clock time, so setting the clock back
before that time pauses again.
"""

from __future__ import annotations

from typing import Final

from escapement.broker.token_bucket import TokenBucket
from escapement.storage.catalog.policy import SubscriptionPolicy
from escapement.storage.catalog.rule import FOREVER_MS

_GRAIN_MS: Final = 10


class Throttle:
    """The dispatch limits of one subscription."""

    __slots__ = ("_bucket", "_policy", "_wake_ms", "topic_paused_until_ms")

    def __init__(self, policy: SubscriptionPolicy) -> None:
        self.topic_paused_until_ms = 0
        self._policy = policy
        self._bucket: TokenBucket | None = None
        self._wake_ms: int | None = None

    @property
    def paused_until_ms(self) -> int:
        """The end of the pause of the subscription or its topic, whichever is later."""
        return max(self._policy.paused_until_ms, self.topic_paused_until_ms)

    def is_paused(self, now_ms: int) -> bool:
        """Return whether deliveries are paused now, even of messages that were granted before."""
        return now_ms < self.paused_until_ms

    def set_policy(self, policy: SubscriptionPolicy) -> None:
        """Follow another policy from now on; tokens spent at the old rate stay spent."""
        self._policy = policy
        self._wake_ms = None
        if not policy.max_rate:
            self._bucket = None

    def grant(self, wanted: int, in_flight: int, now_ms: int) -> int:
        """Return how many of ``wanted`` messages may be delivered now.

        Args:
          in_flight: how many messages are in flight.
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

    def delivered(self, count: int, now_ms: int) -> None:
        """Spend tokens for granted messages that were delivered."""
        if self._bucket is not None:
            self._bucket.spend(count, now_ms)

    def advance(self, now_ms: int) -> bool:
        """Advance to ``now_ms``; return whether more messages may be delivered."""
        if self._wake_ms is None or now_ms < self._wake_ms:
            return False
        self._wake_ms = None
        return True

    def next_wake_ms(self) -> int | None:
        """Return when to wake up because ``grant`` may allow more messages; None for no wake-up."""
        return self._wake_ms
