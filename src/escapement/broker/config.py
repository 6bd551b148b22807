"""The settings that an operator chooses for a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from escapement.broker.limits import DEFAULT_LIMITS, BrokerLimits
from escapement.broker.subscription.retries.backoff import DEFAULT_ACK_WAIT_MS

# The number of tables in the first generation of a new log.
DEFAULT_PARALLELISM: Final = 4
# The most tables in one generation of the log. More would not help.
MOST_PARALLELISM: Final = 256


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings of one broker."""

    limits: BrokerLimits = DEFAULT_LIMITS
    auto_create_topics: bool = True
    table_parallelism: int | None = None  # of the log's next generation; None: unchanged
    max_commits_per_second: float | None = None
    ack_wait_ms: int = DEFAULT_ACK_WAIT_MS
    seed: int | None = None  # of the retry jitter, for tests that replay
