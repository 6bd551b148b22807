"""Bulk redrives: every dead letter that matches is sent again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from histories.history import History


@dataclass
class BulkRedriveCheck:
    """A bulk redrive that is done has left none of the dead letters that it had to send.

    The rules for all messages find dead letters that it sent twice or lost.
    """

    subscription: str
    done: set[int] = field(default_factory=set)  # offsets of dead letters

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield dead letters that are still there after all faults."""
        if left := self.done & history.dead_letters[self.subscription].remaining:
            yield f"redrive: a bulk change left dead letters {sorted(left)}"

    def violations(self, history: History) -> Iterator[str]:
        """Yield nothing: a broker that has lost its lease may list an earlier state."""
        yield from ()
