"""How much of a topic waits, and what bounds that: the arithmetic of backlog quotas.

Pure: numbers in, numbers out. Who counts is :mod:`~escapement.broker.topic.backlog`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """What waits: messages that are due, those that are not yet, and the size of one.

    To who reads the log times mean nothing, and all that it is to read counts as due: of that
    ``beyond`` has only what is more than ``ahead``.
    """

    due: int
    beyond: int
    ahead: int
    mean_bytes: float

    def beside(self, quota: Quota) -> int:
        """What counts for a quota beside what is not yet due."""
        return self.beyond if quota.counts_all else self.due

    def check(self, quota: Quota, whose: str) -> None:
        """Raise ``BacklogFull`` if this meets the quota, and dropping makes no room."""
        if not quota.there:
            return
        waiting = self.ahead if quota.counts_all else 0
        if not quota.drops:
            waiting += self.beside(quota)
        size_bytes = int(waiting * self.mean_bytes)
        over = quota.messages and waiting >= quota.messages
        if over or (quota.size_bytes and size_bytes >= quota.size_bytes):
            raise BacklogFull(
                f"{waiting} messages of {whose} wait, some {size_bytes} bytes: its "
                "backlog quota is met. Publish again when subscriptions have got on"
            )

    @staticmethod
    def of_all(amounts: Sequence[Amount], quota: Quota) -> Amount:
        """All together; the mean is of those that count for a quota."""
        due, beyond = sum(one.due for one in amounts), sum(one.beyond for one in amounts)
        ahead = sum(one.ahead for one in amounts)
        counted = [one.beside(quota) + (one.ahead if quota.counts_all else 0) for one in amounts]
        size = sum(n * one.mean_bytes for n, one in zip(counted, amounts, strict=True))
        return Amount(due, beyond, ahead, size / max(sum(counted), 1))

    def keep_most(self, quota: Quota) -> int:
        """How many messages may stay beside what is not yet due, where that counts."""
        found = [quota.messages] if quota.messages else []
        if quota.size_bytes and self.mean_bytes:
            found.append(int(quota.size_bytes / self.mean_bytes))
        if not found:  # no size is known yet
            return self.beside(quota)
        return max(min(found) - (self.ahead if quota.counts_all else 0), 0)


class Counted(NamedTuple):
    """What waits in a topic: when that was counted, and for how long it is taken for true."""

    at_ms: int
    for_ms: int
    amount: Amount
    by_keys: bool = False  # what is not yet due was counted key by key

    def holds(self, now_ms: int) -> bool:
        """Whether it is taken for true; where the clock was set back it is counted anew."""
        return 0 <= now_ms - self.at_ms < self.for_ms


def levels(waiting: Sequence[int], most: int) -> list[int]:
    """How much of each may stay, where all together are to come to ``most``.

    Who has the most gives first: all that give come to one level, and to ``most`` exactly.
    O(n log n).
    """
    left = most
    order = sorted(range(len(waiting)), key=waiting.__getitem__)
    stay = list(waiting)
    for rank, at in enumerate(order):
        others = len(order) - rank
        level, rest = divmod(left, others)
        if waiting[at] > level:
            # The first of them keep what is left over.
            for place, giver in enumerate(order[rank:]):
                stay[giver] = min(waiting[giver], level + (place < rest))
            break
        left -= waiting[at]
    return stay


def total_quota_of(namespace: NamespacePolicy) -> Quota:
    """What bounds all topics of a namespace together."""
    return Quota(
        namespace.total_quota_messages,
        namespace.total_quota_bytes,
        namespace.quota_counts == "all",
        namespace.quota_action == DROP_OLDEST,
    )


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
