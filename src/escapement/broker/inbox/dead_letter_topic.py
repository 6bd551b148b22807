"""A dead-letter topic, as the place of the dead letters of one subscription."""

from __future__ import annotations

from dataclasses import dataclass

from escapement.broker.subscription.dead_letters.dead_letter import DEAD_LETTERS_SUBSCRIPTION
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.topic.topic import Topic
from escapement.message import Bools, Int64s
from escapement.names import TopicName


@dataclass(frozen=True, slots=True)
class Whose:
    """Names the subscription whose dead letters a request is about."""

    topic: TopicName
    subscription: str
    # The dead-letter topic. None means the one that the subscription has now; it must exist then.
    lie_in: TopicName | None = None

    def __str__(self) -> str:
        return f"{self.topic.full} {self.subscription}"


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """The dead-letter topic for one subscription, and its subscription ``dead-letters``."""

    whose: Whose
    topic: Topic
    subscription: SharedSubscription

    @property
    def is_there(self) -> bool:
        """Whether the topic still has this subscription object.

        It does not after a deletion of the subscription, or after a seek. A seek replaces the
        object, and acknowledgements must go to the new one.
        """
        return self.topic.subscription(DEAD_LETTERS_SUBSCRIPTION) is self.subscription

    def pending(self, due_ms: Int64s, offsets: Int64s) -> Bools:
        """Return which keys are the current keys of pending dead letters; bool[n].

        Old keys of rescheduled dead letters are not current. Cancelled dead letters are not
        pending, unless ``dead-letters`` still holds them.
        """
        here = ~self.subscription.acked.contains(offsets)
        uncancelled = self.topic.amendments.uncancelled(offsets)
        if uncancelled is not None:
            here &= uncancelled | self.subscription.holds(offsets)
        stale = self.topic.amendments.moves.stale(due_ms, offsets)
        return here if stale is None else here & ~stale
