"""What holds a subscription's dispatch back: a pause of it or of its topic.

Asked how many messages may go now, it answers, and remembers when more may: that is when
its subscription wants to be woken. Without a pause it has no opinion and costs nothing.

Pure: the time arrives as an argument. A pause is a moment of the wall clock, so setting the
clock back before it pauses again.
"""

from __future__ import annotations

from escapement.storage.policy import FOREVER_MS, SubscriptionPolicy


class Throttle:
    """See the module's docstring."""

    __slots__ = ("_policy", "_wake_ms", "topic_paused_until_ms")

    def __init__(self, policy: SubscriptionPolicy) -> None:
        self.topic_paused_until_ms = 0
        self._policy = policy
        self._wake_ms: int | None = None

    @property
    def paused_until_ms(self) -> int:
        """Nothing is handed out before this moment."""
        return max(self._policy.paused_until_ms, self.topic_paused_until_ms)

    def set_policy(self, policy: SubscriptionPolicy) -> None:
        """Go by another policy from now on."""
        self._policy = policy
        self._wake_ms = None

    def grant(self, wanted: int, now_ms: int) -> int:
        """How many of ``wanted`` messages, at least one, may be handed out now."""
        until_ms = self.paused_until_ms
        if now_ms < until_ms:
            self._wake_ms = None if until_ms == FOREVER_MS else until_ms
            return 0
        return wanted

    def advance(self, now_ms: int) -> bool:
        """Time has passed; returns whether more may go now."""
        if self._wake_ms is None or now_ms < self._wake_ms:
            return False
        self._wake_ms = None
        return True

    def next_wake_ms(self) -> int | None:
        """When more may be handed out than was granted last; None for nothing to wait for."""
        return self._wake_ms
