"""Backlog quotas: refused publishes and dropped messages need a full backlog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from histories.history import NEVER_MS, Arrival, History, Message
from simulation.checks.setting import Setting, ends, surely

# A broker looks at the backlog at least this often. Its counts hold for this time at most.
FRESH_MS: Final = 120_000


@dataclass(slots=True)
class Quota(Setting):
    """A quota of all topics."""

    messages: int  # 0: no quota
    counts_all: bool = False
    drops: bool = False
    is_total: bool = False  # of all topics of a bundle together


@dataclass
class QuotaCheck:
    """Publishes are refused if the backlog may be full, and accepted only if it may have room.

    A quota that drops the oldest messages leaves as many messages as it allows, and no more. Each
    topic has one subscription.

    Args:
      together: the topics whose backlogs a quota of the namespace adds up, of each topic.
      skew_ms: the most that two clocks differ by.
    """

    together: Mapping[str, Sequence[str]]
    skew_ms: int
    quotas: list[Quota] = field(default_factory=list)
    # The latest due time of each message whose receipt has come.
    latest_ms: dict[int, int] = field(default_factory=dict)
    found: list[str] = field(default_factory=list)

    # -- publishes -------------------------------------------------------------------

    def accepted(self, history: History, batch: Sequence[Message], now_ms: int) -> None:
        """Note the receipts of a batch, which no earlier try has stored."""
        called_ms, topic = batch[0].called_ms, batch[0].topic
        quota = surely(self.quotas, called_ms, now_ms)
        if quota is None or not quota.messages or quota.drops:
            return
        full = sum(
            self._pending_least(history, one, called_ms, now_ms)
            for one in self._scope(topic, quota)
        )
        if full >= quota.messages:
            self.found.append(
                f"quota: {topic} accepted message {batch[0].number} with a backlog of {full}, and"
                f" its quota is {quota.messages}"
            )

    def refused(
        self, history: History, batch: Sequence[Message], called_ms: int, now_ms: int
    ) -> None:
        """Note that a publish of a batch was refused because of the backlog."""
        topic, quota = batch[0].topic, surely(self.quotas, called_ms - FRESH_MS, now_ms)
        if quota is None:
            return
        most = sum(
            len(self._pending_most(history, one, quota, called_ms - FRESH_MS, now_ms))
            for one in self._scope(topic, quota)
        )
        if not quota.messages or most < quota.messages:
            self.found.append(
                f"quota: {topic} refused a message at {now_ms} with a backlog of at most {most},"
                f" and its quota is {quota.messages}"
            )

    def _scope(self, topic: str, quota: Quota) -> Sequence[str]:
        return self.together[topic] if quota.is_total else [topic]

    def _pending_least(self, history: History, topic: str, from_ms: int, to_ms: int) -> int:
        """Return how many messages surely counted for a quota between two times.

        A broker accepts a publish by an estimate. It may be too low for messages that are not yet
        due for a shared subscription, so they count for no quota here.
        """
        (name,) = history.topics[topic]
        since_ms = from_ms - FRESH_MS
        ignores_due = history.kinds[name] == "log"
        return sum(
            message.confirmed_ms < since_ms
            and message.offset >= 0
            and (ignores_due or self.latest_ms.get(message.number, NEVER_MS) < since_ms)
            and (name, message.offset) not in history.ack_sent
            and not self._may_be_dropped(message.called_ms, to_ms)
            for message in history.messages
            if message.topic == topic
        )

    def _may_be_dropped(self, from_ms: int, to_ms: int) -> bool:
        return any(
            quota.drops and quota.called_ms <= to_ms and from_ms <= ended_ms
            for quota, (_, ended_ms) in zip(self.quotas, ends(self.quotas), strict=True)
        )

    def _pending_most(
        self, history: History, topic: str, quota: Quota, from_ms: int, to_ms: int
    ) -> list[Message]:
        """Return the messages that may have counted for a quota at some time between two."""
        (name,) = history.topics[topic]
        ignores_due = quota.counts_all or history.kinds[name] == "log"
        from_s = history.seconds(from_ms)
        return [
            message
            for message in history.messages
            if message.topic == topic
            and message.called_ms <= to_ms
            and not message.refused
            and (ignores_due or message.earliest_ms <= to_ms + self.skew_ms)
            and history.acked_s.get((name, message.offset), from_s) >= from_s
        ]

    # -- drops -----------------------------------------------------------------------

    def over(self, history: History, counts: Mapping[str, tuple[int, int]], now_ms: int) -> bool:
        """Return whether the backlogs surely exceed a quota that drops messages.

        Args:
          counts: the unacknowledged messages of each topic, and how many of them are in flight.
        """
        quota = surely(self.quotas, now_ms - FRESH_MS, now_ms)
        if quota is None or not quota.messages or not quota.drops:
            return False
        for topic in counts:
            scope = self._scope(topic, quota)
            due = sum(counts[one][0] - self._not_due_most(history, one, now_ms) for one in scope)
            if due > max(quota.messages, sum(counts[one][1] for one in scope)):
                return True
        return False

    def _not_due_most(self, history: History, topic: str, now_ms: int) -> int:
        """Return how many messages may be new, or not due for the subscription of a topic."""
        (name,) = history.topics[topic]
        since_ms = now_ms - FRESH_MS
        return sum(
            message.confirmed_ms >= since_ms
            or (
                history.kinds[name] != "log"
                and self.latest_ms.get(message.number, NEVER_MS) >= since_ms
            )
            for message in history.messages
            if message.topic == topic
        )

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield messages that were not acknowledged, and that no quota dropped."""
        for topic in self.together:
            (name,) = history.topics[topic]
            messages = [one for one in history.messages if one.topic == topic]
            times_ms = self._times_ms(history, name, messages)
            for message in messages:
                stored = message.confirmed_ms < NEVER_MS and not message.refused
                if not stored or (name, message.offset) in history.ack_sent:
                    continue
                later_ms = (at_ms for at_ms in times_ms if at_ms >= message.called_ms)
                if not any(self._may_drop(history, message, at_ms) for at_ms in later_ms):
                    yield (
                        f"lost (quota): message {message.number} was not delivered to {name},"
                        " and no quota dropped it"
                    )

    def _times_ms(self, history: History, name: str, messages: Sequence[Message]) -> set[int]:
        """Return the times at which the largest backlog may have grown, or a quota changed."""
        return {
            history.now_ms(),
            *(message.called_ms for message in messages),
            *(message.earliest_ms + self.skew_ms for message in messages),
            *(quota.from_ms for quota in self.quotas if quota.from_ms < NEVER_MS),
            *(_sent_ms(history, one) for one in history.arrivals if one.subscription == name),
        }

    def _may_drop(self, history: History, message: Message, at_ms: int) -> bool:
        """Return whether a quota may have dropped a message at a time."""
        quota = surely(self.quotas, at_ms - FRESH_MS, min(at_ms + FRESH_MS, history.now_ms()))
        if quota is None:
            return True
        if not quota.messages or not quota.drops:
            return False
        stay = 0
        for topic in self._scope(message.topic, quota):
            others = self._pending_most(history, topic, quota, at_ms, at_ms)
            if topic == message.topic:
                others = [one for one in others if self._may_stay(history, message, one, at_ms)]
            stay += len(others)
        return stay >= quota.messages

    def _may_stay(self, history: History, message: Message, other: Message, at_ms: int) -> bool:
        """Return whether another message may stay while a message is dropped.

        It is newer, or in flight.
        """
        if other is message:
            return False
        (name,) = history.topics[message.topic]
        course = history.courses.get((name, other.offset), ())
        if any(_sent_ms(history, arrival) <= at_ms for arrival in course):
            return True
        if history.kinds[name] == "log":
            return other.offset > message.offset or other.offset < 0
        return self.latest_ms.get(other.number, NEVER_MS) >= message.earliest_ms

    def violations(self, history: History) -> Iterator[str]:
        """Yield wrong refusals and backlogs that were too large."""
        yield from self.found


def _sent_ms(history: History, arrival: Arrival) -> int:
    return history.began_ms + int(arrival.sent_s * 1000)
