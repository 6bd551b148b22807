"""What an operator decides about a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from escapement.broker.limits import DEFAULT_LIMITS, BrokerLimits
from escapement.broker.subscription.backoff import DEFAULT_ACK_WAIT_MS

# Of a new log.
DEFAULT_PARALLELISM: Final = 4
# A generation of the log has so many tables; more help nobody.
MOST_PARALLELISM: Final = 256


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """See the module's docstring."""

    limits: BrokerLimits = DEFAULT_LIMITS
    auto_create_topics: bool = True
    table_parallelism: int | None = None  # of the log's next generation; None: as it is
    max_commits_per_second: float | None = None
    ack_wait_ms: int = DEFAULT_ACK_WAIT_MS
    seed: int | None = None  # of the jitter; for tests that replay
