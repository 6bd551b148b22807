"""A request for a bulk change, from its arguments to the times that it sets."""

from __future__ import annotations

from typing import NamedTuple

from escapement.broker.inbox.dead_letter_topic import Whose
from escapement.broker.topic.topic import Topic
from escapement.names import TopicName
from escapement.storage.bulk_change import Action, BulkChange, BulkState, Counts, Filter


class BulkRequest(NamedTuple):
    """A request for a bulk change.

    Args:
      topic: the topic of the messages; for a redrive, the original topic of the dead letters.
      subscription, lie_in: for a redrive, the subscription, and the dead-letter topic if it is not
        the one of the subscription now.
      delay_ms, at_ms: for a reschedule, the new due time.
      role, reason: who asks for it, and why.
    """

    topic: TopicName
    action: Action
    filter: Filter
    subscription: str = ""
    lie_in: TopicName | None = None
    delay_ms: int | None = None
    at_ms: int | None = None
    spread_ms: int = 0
    role: str | None = None
    reason: str = ""

    @property
    def whose(self) -> Whose | None:
        if self.action is not Action.REDRIVE:
            return None
        return Whose(self.topic, self.subscription, self.lie_in)

    def begun(self, topic: Topic, now_ms: int) -> BulkChange:
        """Return the new bulk change, which has no id yet.

        Args:
          topic: the topic that has the messages.
        """
        return BulkChange(
            0,
            self.topic.full,
            topic.id,
            self.action,
            self.subscription,
            "" if self.whose is None else topic.name.full,
            self.filter,
            topic.next_offset,
            self._new_at_ms(now_ms),
            self.spread_ms,
            self.role,
            self.reason,
            now_ms,
            BulkState.SELECTING,
            0,
            0,
            Counts(),
            "",
            now_ms,
            None,
        )

    def _new_at_ms(self, now_ms: int) -> int | None:
        """Return the new due time, without the spread; None means at once."""
        if self.delay_ms is not None:
            return now_ms + self.delay_ms
        return now_ms if self.at_ms is None and self.spread_ms else self.at_ms
