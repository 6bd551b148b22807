"""The delay policy and the retention of a namespace, as its client set them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from histories.history import History, Message
from simulation.checks.setting import Setting, ends, surely


@dataclass(slots=True)
class Delays(Setting):
    """The settings of a namespace. A delay of 0 means that there is none."""

    default_ms: int = 0
    least_ms: int = 0
    most_ms: int = 0
    are_enabled: bool = True
    retention_ms: int = 0

    def accept(self, delay_ms: int | None) -> bool:
        """Return whether a message with this delay is accepted; None: it was sent without one."""
        if not self.are_enabled:
            return delay_ms is None
        filled_ms = self.filled(delay_ms)
        return self.least_ms <= filled_ms and (not self.most_ms or filled_ms <= self.most_ms)

    def filled(self, delay_ms: int | None) -> int:
        """Return the delay of a message; None: it was sent without one."""
        if delay_ms is None:
            return self.default_ms if self.are_enabled else 0
        return delay_ms


@dataclass
class DelayCheck:
    """Messages get the delays that the policy says, keep them, and are refused beyond its bounds.

    Other ticks and partitions move no due time. The log keeps messages for their retention.

    Args:
      skew_ms: the most that two clocks differ by.
    """

    topic: str
    skew_ms: int
    settings: list[Delays] = field(default_factory=list)
    latest_ms: dict[int, int] = field(default_factory=dict)  # due time of each message
    found: list[str] = field(default_factory=list)

    def accepted(self, message: Message, delay_ms: int | None, now_ms: int) -> None:
        """Note the receipt of a message; a delay of None: it was sent without one."""
        sure = surely(self.settings, message.called_ms, now_ms)
        if sure is not None:
            filled_ms = sure.filled(delay_ms)
            if not sure.accept(delay_ms):
                self.found.append(
                    f"delay: message {message.number} was accepted with a delay of {filled_ms} ms"
                    f" by {sure}"
                )
            if delay_ms is None:
                message.earliest_ms += filled_ms
            delay_ms = filled_ms
        if delay_ms is not None:
            self.latest_ms[message.number] = now_ms + delay_ms + self.skew_ms

    def refused(
        self, messages: Sequence[Message], delays_ms: Sequence[int | None], now_ms: int
    ) -> None:
        """Note that a batch was refused because of its delays."""
        sure = surely(self.settings, messages[0].called_ms, now_ms)
        if sure is not None and all(map(sure.accept, delays_ms)):
            self.found.append(
                f"delay: message {messages[0].number} and those with it were refused with delays"
                f" of {delays_ms} ms by {sure}"
            )

    def lacks(self, history: History, logged: set[int], now_ms: int) -> set[int]:
        """Return the messages that the log should have, and has not."""
        return {
            message.number
            for message in history.messages
            if message.topic == self.topic
            and message.offset >= 0
            and message.number not in logged
            and not self._may_be_forgotten(message, now_ms)
        }

    def _may_be_forgotten(self, message: Message, now_ms: int) -> bool:
        """Return whether a retention may have ended before it was changed."""
        for setting, (_, ended_ms) in zip(self.settings, ends(self.settings), strict=True):
            age_ms = min(ended_ms, now_ms) + self.skew_ms - message.called_ms
            if ended_ms >= message.called_ms and age_ms > setting.retention_ms:
                return True
        return False

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield nothing: the rules for all messages find lost ones."""
        yield from ()

    def violations(self, history: History) -> Iterator[str]:
        """Yield wrong answers, and messages that are due too late."""
        yield from self.found
        for arrival in history.arrivals:
            late_ms = arrival.due_ms - self.latest_ms.get(arrival.number, arrival.due_ms)
            if late_ms > 0:
                yield f"delay: message {arrival.number} is due {late_ms} ms too late"
