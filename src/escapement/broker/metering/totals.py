"""The counters of a whole broker since it started.

Each part of the broker increases them once for each batch, beside the counters of a topic or
subscription. So they never fall, also when a topic is deleted or becomes passive, and reading them
costs the same with any number of topics.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from escapement.broker.metering.histogram import Histogram
from escapement.broker.metering.lateness_history import LatenessHistory

# From one tick of the timing wheel to a long outage.
LATENESS_MS: Final = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000,
    300_000, 1_800_000, 7_200_000,
)  # fmt: skip
# From a commit in memory to one that waits for a database that hangs.
COMMIT_US: Final = (
    500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000,
)  # fmt: skip


@dataclass(slots=True)
class Totals:
    """Numbers of messages since the broker started, two histograms, and a history."""

    published: int = 0
    delivered: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    dead_lettered: int = 0
    cancelled: int = 0
    expired: int = 0
    dropped: int = 0
    early: int = 0  # messages that a shared subscription delivered before their due times
    # How long after its due time a message was delivered for the first time.
    lateness_ms: Histogram = field(default_factory=lambda: Histogram(LATENESS_MS))
    # The same by subscription and minute.
    lateness_history: LatenessHistory = field(default_factory=LatenessHistory)
    # From the forming of a group commit until it is durable.
    commit_us: Histogram = field(default_factory=lambda: Histogram(COMMIT_US))

    @property
    def handled(self) -> int:
        """The number of messages that were published and delivered."""
        return self.published + self.delivered
