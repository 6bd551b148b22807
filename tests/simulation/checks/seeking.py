"""Seeks and pauses: what a subscription gets again, and that a pause stops its deliveries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from histories.history import Arrival, History, Message, Seek


@dataclass
class Pause:
    """A pause of a subscription: it held from ``began_s`` to ``ended_s``, if not longer."""

    subscription: str
    began_s: float
    ended_s: float = float("inf")


@dataclass
class SeekCheck:
    """After its last seek, a subscription gets every message from its position on, and no other.

    Args:
      skew_ms: the most that two clocks differ by.
    """

    topic: str
    skew_ms: int
    pauses: list[Pause] = field(default_factory=list)

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield messages that must be acknowledged again since the last seek."""
        for name in history.topics[self.topic]:
            last = history.seeks[name][-1] if history.seeks[name] else None
            for message in history.messages:
                if message.topic != self.topic or message.offset < 0:
                    continue
                if last is not None and not self._is_wanted(history, last, message):
                    continue
                since_s = 0.0 if last is None else last.called_s
                if max(history.acks_s(name, message.offset), default=-1.0) < since_s:
                    yield (
                        f"message {message.number} at offset {message.offset} was lost for {name}"
                        f" since its seek to {last}"
                    )

    def _is_wanted(self, history: History, seek: Seek, message: Message) -> bool:
        """Return whether a subscription must get a message after a seek."""
        if history.seconds(message.called_ms) >= seek.answered_s:
            return True
        if history.kinds[seek.subscription] == "log":
            # The log may have relocated it, and then the order of the log does not have it.
            return False
        if seek.offset is not None:
            return message.offset >= seek.offset
        assert seek.from_ms is not None
        return message.earliest_ms >= seek.from_ms + self.skew_ms

    def violations(self, history: History) -> Iterator[str]:
        """Yield deliveries from before the position of a seek, and those during a pause."""
        for arrival in history.arrivals:
            if arrival.subscription not in history.seeks:
                continue
            seeks = history.seeks[arrival.subscription]
            done = [seek for seek in seeks if seek.answered_s < arrival.sent_s]
            last = done[-1] if done else None
            # Another seek may have taken effect since.
            if last is not None and last is seeks[-1] and self._is_before(history, last, arrival):
                yield f"seek: offset {arrival.offset} came after the seek to {last}"
            for pause in self.pauses:
                if pause.subscription != arrival.subscription:
                    continue
                if pause.began_s + history.sending_s < arrival.sent_s < pause.ended_s:
                    yield f"pause: offset {arrival.offset} of {pause.subscription} came during it"

    def _is_before(self, history: History, seek: Seek, arrival: Arrival) -> bool:
        """Return whether a message was certainly stored before a seek, and is not wanted."""
        message = history.messages[arrival.number]
        if seek.offset is not None:
            return arrival.offset < seek.offset
        if history.seconds(message.confirmed_ms) >= seek.called_s:
            return False
        assert seek.from_ms is not None
        if history.kinds[seek.subscription] == "log":
            return message.confirmed_ms < seek.from_ms - self.skew_ms
        return arrival.due_ms < seek.from_ms - self.skew_ms
