"""How much of a topic waits, and what bounds that: the arithmetic of backlog quotas.

Pure: numbers in, numbers out. Who counts is :mod:`~escapement.broker.backlog`.
"""

from __future__ import annotations

from typing import NamedTuple

from escapement.errors import BacklogFull
from escapement.storage.policy import DROP_OLDEST, NamespacePolicy, TopicPolicy


class Quota(NamedTuple):
    """A bound of a backlog; 0 is none."""

    messages: int
    size_bytes: int
    counts_all: bool  # also what is not yet due
    drops: bool  # the oldest due; else publishing is refused

    @property
    def there(self) -> bool:
        """Whether anything is bounded."""
        return bool(self.messages or self.size_bytes)


class Amount(NamedTuple):
    """What waits: messages that are due, those that are not yet, and the size of one."""

    due: int
    ahead: int
    mean_bytes: float

    def check(self, quota: Quota, whose: str) -> None:
        """Raise ``BacklogFull`` if this meets the quota, and dropping makes no room."""
        if not quota.there:
            return
        waiting = self.ahead if quota.counts_all else 0
        if not quota.drops:
            waiting += self.due
        size_bytes = int(waiting * self.mean_bytes)
        over = quota.messages and waiting >= quota.messages
        if over or (quota.size_bytes and size_bytes >= quota.size_bytes):
            raise BacklogFull(
                f"{waiting} messages of {whose} wait, some {size_bytes} bytes: its "
                "backlog quota is met. Publish again when subscriptions have got on"
            )

    def keep_most(self, quota: Quota) -> int:
        """How many due messages may stay."""
        found = [quota.messages] if quota.messages else []
        if quota.size_bytes:
            found.append(int(quota.size_bytes / max(self.mean_bytes, 1.0)))
        return max(min(found) - (self.ahead if quota.counts_all else 0), 0)


def quota_of(own: TopicPolicy, namespace: NamespacePolicy) -> Quota:
    """What bounds a topic by itself."""
    counts = namespace.quota_counts if own.quota_counts == "namespace" else own.quota_counts
    action = namespace.quota_action if own.quota_action == "namespace" else own.quota_action
    return Quota(
        own.quota_messages or namespace.quota_messages,
        own.quota_bytes or namespace.quota_bytes,
        counts == "all",
        action == DROP_OLDEST,
    )
