"""Decides when to check whether a topic exceeds its backlog quota.

A check is needed when messages arrive, fall due, return from a consumer or are cancelled, and when
the quota changes. It happens at most once a second, and not before ``rests_until_ms``. Pure.
"""

from __future__ import annotations


class QuotaWatch:
    """The next quota check of one topic."""

    __slots__ = ("comes_due_ms", "grown", "rests_until_ms")

    def __init__(self) -> None:
        self.grown = True  # whether the backlog may have grown since the last check
        self.rests_until_ms = 0
        # When the next message falls due, if the topic has no shared subscription that notices it;
        # None: no check is needed for that.
        self.comes_due_ms: int | None = None

    def advance(self, now_ms: int) -> None:
        """Request a check if ``comes_due_ms`` has passed."""
        if self.comes_due_ms is not None and now_ms >= self.comes_due_ms:
            self.comes_due_ms = None
            self.grown = True

    def rewind(self) -> None:
        """Request a check at once: the wall clock was set back."""
        self.rests_until_ms = 0
        self.grown = True

    def rest(self, until_ms: int) -> None:
        """Allow no check before ``until_ms``."""
        self.rests_until_ms = max(self.rests_until_ms, until_ms)

    def next_wake_ms(self, grown: bool) -> int | None:
        """Return when to check the topic next; None for never.

        Args:
          grown: whether the backlog may have grown since the last check.
        """
        return self.rests_until_ms if grown else self.comes_due_ms
