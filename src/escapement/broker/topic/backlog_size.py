"""The arithmetic of backlog quotas.

A *backlog* is the messages that are due and not acknowledged. A *quota* bounds it, and some quotas
also count messages not yet due. When a quota is reached, publishes are refused, or the oldest due
messages are dropped.

Pure: numbers in, numbers out. :mod:`~escapement.broker.topic.backlogs` does the counting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from escapement.errors import BacklogFull
from escapement.storage.catalog.policy import DROP_OLDEST, NamespacePolicy, TopicPolicy


class Quota(NamedTuple):
    """A bound on a backlog, in messages and in bytes; 0 means unlimited."""

    messages: int
    size_bytes: int
    counts_all: bool  # messages not yet due count too
    drops: bool  # a full backlog drops its oldest due messages; else it refuses publishes

    @property
    def there(self) -> bool:
        """Whether the quota has a bound, in messages or in bytes."""
        return bool(self.messages or self.size_bytes)


class BacklogSize(NamedTuple):
    """The numbers of due messages and of messages not yet due, and the mean size of a message.

    An exclusive or failover subscription ignores due times, so all its unacknowledged messages
    count as due, even those that ``ahead`` counts already. ``beyond`` leaves out such double
    counts. For a shared subscription, ``beyond`` equals ``due``.
    """

    due: int
    beyond: int  # due messages that ``ahead`` does not count
    ahead: int  # messages not yet due
    mean_bytes: float

    def beside(self, quota: Quota) -> int:
        """Return how many messages count for a quota, without those in ``ahead``."""
        return self.beyond if quota.counts_all else self.due

    def check(self, quota: Quota, whose: str) -> None:
        """Raise ``BacklogFull`` if the backlog has reached a quota and dropping cannot make room.

        Only due messages can be dropped. So against a drop-oldest quota only ``ahead`` counts.

        Args:
          whose: names the owner of the backlog in the error message.
        """
        if not quota.there:
            return
        waiting = self.ahead if quota.counts_all else 0
        if not quota.drops:
            waiting += self.beside(quota)
        size_bytes = int(waiting * self.mean_bytes)
        over = quota.messages and waiting >= quota.messages
        if over or (quota.size_bytes and size_bytes >= quota.size_bytes):
            raise BacklogFull(
                f"the backlog quota of {whose} is reached: {waiting} messages, about "
                f"{size_bytes} bytes, are pending; publish again when some are acknowledged"
            )

    @staticmethod
    def of_all(amounts: Sequence[BacklogSize], quota: Quota) -> BacklogSize:
        """Return the sum of backlogs, with the mean size of the messages that ``quota`` counts."""
        due, beyond = sum(one.due for one in amounts), sum(one.beyond for one in amounts)
        ahead = sum(one.ahead for one in amounts)
        counted = [one.beside(quota) + (one.ahead if quota.counts_all else 0) for one in amounts]
        size = sum(n * one.mean_bytes for n, one in zip(counted, amounts, strict=True))
        return BacklogSize(due, beyond, ahead, size / max(sum(counted), 1))

    def keep_most(self, quota: Quota) -> int:
        """Return how many messages a drop-oldest quota allows, besides those in ``ahead``."""
        found = [quota.messages] if quota.messages else []
        if quota.size_bytes and self.mean_bytes:
            found.append(int(quota.size_bytes / self.mean_bytes))
        if not found:  # the size of messages is not known yet
            return self.beside(quota)
        return max(min(found) - (self.ahead if quota.counts_all else 0), 0)


class Counted(NamedTuple):
    """A counted backlog of a topic or namespace, with the time for which the count is valid."""

    at_ms: int  # when it was counted
    for_ms: int  # how long the count is valid
    amount: BacklogSize
    by_keys: bool = False  # counted key by key, not estimated

    def holds(self, now_ms: int) -> bool:
        """Return whether the count is still valid. Setting the clock back makes it invalid."""
        return 0 <= now_ms - self.at_ms < self.for_ms


def levels(waiting: Sequence[int], most: int) -> list[int]:
    """Return how many messages each backlog may keep so that together they keep at most ``most``.

    The largest backlogs shrink first, down to a common level. O(n log n).

    Args:
      waiting: the number of messages in each backlog.
    """
    left = most
    order = sorted(range(len(waiting)), key=waiting.__getitem__)
    stay = list(waiting)
    for rank, at in enumerate(order):
        others = len(order) - rank
        level, rest = divmod(left, others)
        if waiting[at] > level:
            # The first of the shrinking backlogs share the remainder, one message each.
            for index, giver in enumerate(order[rank:]):
                stay[giver] = min(waiting[giver], level + (index < rest))
            break
        left -= waiting[at]
    return stay


def total_quota_of(namespace: NamespacePolicy) -> Quota:
    """Return the quota on the sum of the backlogs of a namespace's topics."""
    return Quota(
        namespace.total_quota_messages,
        namespace.total_quota_bytes,
        namespace.quota_counts == "all",
        namespace.quota_action == DROP_OLDEST,
    )


def is_governed(own: TopicPolicy, namespace: NamespacePolicy) -> bool:
    """Return whether a topic has a time to live or a quota, which act even without clients."""
    return bool(
        own.ttl_ms
        or own.quota_messages
        or own.quota_bytes
        or namespace.ttl_ms
        or namespace.quota_messages
        or namespace.quota_bytes
        or namespace.total_quota_messages
        or namespace.total_quota_bytes
    )


def quota_of(own: TopicPolicy, namespace: NamespacePolicy) -> Quota:
    """Return the quota of one topic; the namespace's policy fills in unset fields."""
    counts = namespace.quota_counts if own.quota_counts == "namespace" else own.quota_counts
    action = namespace.quota_action if own.quota_action == "namespace" else own.quota_action
    return Quota(
        own.quota_messages or namespace.quota_messages,
        own.quota_bytes or namespace.quota_bytes,
        counts == "all",
        action == DROP_OLDEST,
    )
