"""When a topic is looked at for its quota: once more may wait than it has room for.

That is so when something comes, comes due, is given back or is cancelled, or when what is said of
the quota changes; at most once a second, and no sooner than ``rests_until_ms``. Pure.
"""

from __future__ import annotations


class QuotaWatch:
    """See the module's docstring."""

    __slots__ = ("comes_due_ms", "grown", "rests_until_ms")

    def __init__(self) -> None:
        self.grown = True  # since it was looked at
        self.rests_until_ms = 0
        # When the next comes due of what no shared subscription waits for; None: nobody asks.
        self.comes_due_ms: int | None = None

    def advance(self, now_ms: int) -> None:
        """It is so late."""
        if self.comes_due_ms is not None and now_ms >= self.comes_due_ms:
            self.comes_due_ms = None
            self.grown = True

    def rewind(self) -> None:
        """The wall clock went back: when it was looked at says nothing any more."""
        self.rests_until_ms = 0
        self.grown = True

    def rest(self, until_ms: int) -> None:
        """It is not looked at before then, at the least."""
        self.rests_until_ms = max(self.rests_until_ms, until_ms)

    def next_wake_ms(self, grown: bool) -> int | None:
        """When it is to be looked at; ``grown``: something has changed since."""
        return self.rests_until_ms if grown else self.comes_due_ms
