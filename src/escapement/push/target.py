"""A push target, as `escapement push` gets it from a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from escapement.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Target:
    """Where the messages of a subscription are posted, and how.

    Attributes:
      id_prefix: the first part of the ids of its messages. It names the log and the topic, which
        have ids that are never used again.
      secrets: those that sign posts now.
    """

    topic: str
    subscription: str
    id_prefix: str
    endpoint: Endpoint
    timeout_ms: int
    ack_wait_ms: int
    concurrency: int
    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Target:
        """Return the target in a row of the answer to ``push.secrets``."""
        return cls(
            row["topic"],
            row["subscription"],
            f"msg_{row['log'][:16]}_{row['topic_id']}_",
            Endpoint.parse(row["url"]),
            row["timeout_ms"],
            row["ack_wait_ms"],
            row["concurrency"],
            tuple(row["secrets"]),
        )
