"""The delay policy of a topic: the default, the minimum and the maximum delay of its messages.

A topic's policy replaces its namespace's, value by value. The policy is for applications: it
applies to messages that a client, an outbox or a bulk job sends. The messages that the broker
publishes by itself (of schedules, follow-ups and dead letters) have their own times.

A *delay* is the time from the moment the broker accepts a message to its due time. A message
without a delay or time gets the default first. The bounds apply to the result.

Pure: numbers in, numbers out. All checks are on the columns of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from escapement.durations import format as duration_text
from escapement.errors import DelayTooLong, DelayTooShort
from escapement.message import NO_TIME, Bools, Int64s, Times
from escapement.names import TopicName
from escapement.storage.catalog.catalog import Namespace
from escapement.storage.catalog.policy import TopicPolicy


class DelaySetting(NamedTuple):
    """One value of a delay policy, and where it is set. 0 means that there is none."""

    ms: int = 0
    where: str = ""  # such as "namespace shop/eu"
    change: str = ""  # the command that changes it, without its option

    @property
    def text(self) -> str:
        """The value and its place, for an error message."""
        return f"{duration_text(self.ms)}, set by {self.where}"


NOTHING: Final = DelaySetting()


@dataclass(frozen=True, slots=True)
class DelayPolicy:
    """The delay policy that applies to one topic."""

    default: DelaySetting = NOTHING
    least: DelaySetting = NOTHING
    most: DelaySetting = NOTHING

    @classmethod
    def of(cls, name: TopicName, own: TopicPolicy, namespace: Namespace) -> DelayPolicy | None:
        """Return the delay policy of a topic; None if it has none.

        A namespace with delays disabled has none.
        """
        general = namespace.policy
        if not namespace.delays_enabled:
            return None

        def setting(of_topic_ms: int, of_namespace_ms: int) -> DelaySetting:
            if of_topic_ms:
                change = f"escapement admin topics set-delays {name.full}"
                return DelaySetting(of_topic_ms, f"topic {name.full}", change)
            if of_namespace_ms:
                full = name.namespace_full
                change = f"escapement admin namespaces set-delays {full}"
                return DelaySetting(of_namespace_ms, f"namespace {full}", change)
            return NOTHING

        found = cls(
            setting(own.default_delay_ms, general.default_delay_ms),
            setting(own.min_delay_ms, general.min_delay_ms),
            setting(own.max_delay_ms, general.max_delay_ms),
        )
        return None if found == cls() else found

    def within(self, most_ms: int) -> DelayPolicy:
        """Return this policy with the maximum delay of a broker as the outer bound."""
        if 0 < self.most.ms <= most_ms:
            return self
        return replace(self, most=DelaySetting(most_ms, "the broker's --max-delay"))

    def filled(self, times: Times, count: int) -> Times:
        """Return the times of a batch, with the default delay for messages that have no time."""
        if not self.default.ms:
            return times
        bare = _bare(times, count)
        if not bare.any():
            return times
        delay_ms = np.full(count, NO_TIME) if times.delay_ms is None else times.delay_ms
        return Times(np.where(bare, self.default.ms, delay_ms), times.at_ms)

    def filled_at(self, at_ms: Int64s | None, count: int, start_ms: int) -> Int64s | None:
        """Return due times like :meth:`filled`, with the default delay counted from ``start_ms``.

        Args:
          at_ms: the due times; ``NO_TIME`` for a message without one, None if none has one.
        """
        if not self.default.ms:
            return at_ms
        if at_ms is None:
            return np.full(count, start_ms + self.default.ms)
        return np.where(at_ms == NO_TIME, start_ms + self.default.ms, at_ms)

    def check(
        self,
        times: Times,
        count: int,
        now_ms: int,
        sent: Times | None = None,
        name: Callable[[int], str] | None = None,
    ) -> None:
        """Check the delays of new messages against the minimum and the maximum.

        Args:
          times: the times of the batch, with the default.
          count: the number of messages.
          sent: the times without the default, if there are any; for error messages.
          name: returns the name of the message in a row, for error messages.

        Raises:
          DelayTooShort, DelayTooLong: the error names the first message that is refused.
        """
        if not (self.least.ms or self.most.ms):
            return
        delays_ms = times.resolve(now_ms, count) - now_ms
        short = delays_ms < self.least.ms
        wrong = short | (delays_ms > self.most.ms) if self.most.ms else short
        if not wrong.any():
            return
        row = int(np.argmax(wrong))
        subject = "The message" if count == 1 else f"Message {row + 1} of a batch of {count}"
        if name is not None:
            subject = name(row)
        delay = f"a delay of {duration_text(int(delays_ms[row]))}" if delays_ms[row] else "no delay"
        if sent is not None and self.default.ms and _bare(sent, count)[row]:
            delay = f"the default delay of {self.default.text}"
        if short[row]:
            raise DelayTooShort(
                f"{subject} has {delay}. The minimum is {self.least.text}. Give it a longer delay, "
                f"or change the minimum with `{self.least.change} --min`."
            )
        change = self.most.change and f", or change the maximum with `{self.most.change} --max`"
        most = self.most.text
        raise DelayTooLong(
            f"{subject} has {delay}. The maximum is {most}. Give it a shorter delay{change}."
        )

    def check_moved(self, times: Times, count: int, now_ms: int) -> None:
        """Check the new delays of messages that are rescheduled, against the maximum only.

        Raises:
          DelayTooLong: if a delay is too long.
        """
        replace(self, least=NOTHING).check(times, count, now_ms)


def _bare(times: Times, count: int) -> Bools:
    """Return which messages of a batch have neither a delay nor a time; bool[count]."""
    bare = np.ones(count, np.bool_)
    for column in (times.delay_ms, times.at_ms):
        if column is not None:
            bare &= column < 0
    return bare
