"""How much of a topic waits, and whether more may be published: its backlog quota.

The backlog is that of the subscription that is furthest behind: what is due for it and not
acknowledged. What is not yet due counts only where the quota says so (P10). It is counted from
what is known without reading anything, in O(subscriptions + segments):

- of a shared subscription what it holds (ready, in flight, in retry), and beyond its read
  mark what the index has up to now, where what is done already may count too; but never
  more than it has not acknowledged. In the outermost blocks of a segment messages are
  taken to be spread evenly in time;
- of an exclusive or failover one, what it has not acknowledged;
- what is not yet due: what the index has from now on, in the same way.

Bytes are messages times their mean size of late. A count is used for a second, so what was
published meanwhile goes over the quota, and no more.
"""

from __future__ import annotations

from typing import Final

from escapement.broker.shared import SharedSubscription
from escapement.broker.subscription import Subscription
from escapement.broker.topic import Topic
from escapement.errors import BacklogFull
from escapement.storage.index import KEY_MAX, DelayedIndex, Key
from escapement.storage.policy import NamespacePolicy, TopicPolicy

_FRESH_MS: Final = 1_000


def check_backlog(topic: Topic, index: DelayedIndex, now_ms: int) -> None:
    """Whether a topic may be published to.

    Raises:
      BacklogFull: its backlog has reached its quota.
    """
    messages = topic.policy.quota_messages or topic.namespace.policy.quota_messages
    size_bytes = topic.policy.quota_bytes or topic.namespace.policy.quota_bytes
    if not messages and not size_bytes:
        return
    which = _counts(topic.policy, topic.namespace.policy)
    counted = topic.backlog
    # Counted anew where it was counted otherwise, or the clock was set.
    if counted is None or counted[0] != which or not 0 <= now_ms - counted[1] < _FRESH_MS:
        counted = topic.backlog = (which, now_ms, backlog(topic, index, which, now_ms))
    waiting = counted[2]
    waiting_bytes = int(waiting * topic.sizes.mean_bytes)
    if (messages and waiting >= messages) or (size_bytes and waiting_bytes >= size_bytes):
        raise BacklogFull(
            f"{waiting} messages of {topic.name.full} wait, some {waiting_bytes} bytes: its "
            "backlog quota is met. Publish again when subscriptions have got on"
        )


def backlog(topic: Topic, index: DelayedIndex, which: str, now_ms: int) -> int:
    """How many messages wait; ``which`` is ``due`` or ``all``."""
    frontier = Key(now_ms + 1, 0)
    found = max(
        (_due(topic, subscription, index, frontier) for subscription in topic.subscriptions()),
        default=0,
    )
    return found + (index.count_between(topic.id, frontier, KEY_MAX) if which == "all" else 0)


def _due(topic: Topic, subscription: Subscription, index: DelayedIndex, frontier: Key) -> int:
    if not isinstance(subscription, SharedSubscription):
        return max(topic.unacknowledged(subscription) - subscription.record.start_offset, 0)
    waiting = len(subscription.held)
    unread = subscription.unread_from
    if unread is not None:
        waiting += index.count_between(topic.id, unread, frontier)
    return min(waiting, topic.unacknowledged(subscription))


def _counts(topic: TopicPolicy, namespace: NamespacePolicy) -> str:
    return namespace.quota_counts if topic.quota_counts == "namespace" else topic.quota_counts
