"""The settings that an operator chooses for a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from escapement.broker.findings import Check
from escapement.broker.limits import DEFAULT_LIMITS, BrokerLimits
from escapement.broker.subscription.retries.backoff import DEFAULT_ACK_WAIT_MS
from escapement.errors import InvalidRequest
from escapement.names import TableName
from escapement.storage.engine.address import MysqlAddress

# The number of tables in the first generation of a new log.
DEFAULT_PARALLELISM: Final = 4
# The most tables in one generation of the log. More would not help.
MOST_PARALLELISM: Final = 256

# About a quarter of a year.
DEFAULT_AUDIT_RETENTION_MS: Final = 90 * 86_400_000


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings of one broker."""

    limits: BrokerLimits = DEFAULT_LIMITS
    auto_create_topics: bool = True
    # The number of tables in the log's next generation; None: as many as in the current one.
    table_parallelism: int | None = None
    max_commits_per_second: float | None = None
    # The ack wait of shared consumers, if neither they nor their subscription set one.
    ack_wait_ms: int = DEFAULT_ACK_WAIT_MS
    # The databases of applications whose outboxes the broker serves.
    outboxes: tuple[MysqlAddress, ...] = ()
    # The databases of applications whose message tables the broker serves.
    tables: tuple[MysqlAddress, ...] = ()
    # Whether to read the binary logs of their servers, so that new rows are found at once.
    binary_logs: bool = False
    # How long the audit log keeps a row.
    audit_retention_ms: int = DEFAULT_AUDIT_RETENTION_MS
    # Makes the checks of `escapement doctor` for this broker. Blocking.
    checks: Check = list
    seed: int | None = None  # the seed of the random retry jitter, for tests that replay

    @property
    def new_parallelism(self) -> int:
        """The number of tables in the first generation of a log."""
        return self.table_parallelism or DEFAULT_PARALLELISM

    def __post_init__(self) -> None:
        """Check that the databases with message tables have different names, valid in topics.

        Raises:
          InvalidRequest: if they do not.
        """
        first: dict[str, MysqlAddress] = {}
        for address in self.tables:
            name = address.database
            TableName.of(name, "table")
            if (other := first.setdefault(name, address)) is not address:
                raise InvalidRequest(
                    f"Two databases with message tables have the name {name}: {other} and"
                    f" {address}. Their topics would have the same names. Serve one of them with"
                    " another broker."
                )
