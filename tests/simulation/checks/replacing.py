"""Replace keys: what receipts said about the messages of each key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from histories.history import Amendment, History, Message

LATEST: Final = "latest"
FIRST: Final = "first"
DEBOUNCE: Final = "debounce"


@dataclass(slots=True)
class Entry:
    """A message with a replace key that may be the last one of its key."""

    message: Message
    # The broker accepted the first message of its chain by this time, by the true clock.
    began_ms: int
    wait_ms: int | None = None  # of a debounce


@dataclass(slots=True)
class Send:
    """One message that was sent with a replace key, and the messages that it may end."""

    message: Message
    key: str
    mode: str
    called_ms: int
    wait_ms: int | None = None  # of a debounce
    ends: list[tuple[Message, Amendment]] = field(default_factory=list)

    def may_end(self, message: Message) -> None:
        """Note that a message may be cancelled from now on."""
        amendment = Amendment(None, self.called_ms, once=True)
        message.amendments.append(amendment)
        self.ends.append((message, amendment))


@dataclass
class ReplaceCheck:
    """A receipt is true of the message that it names, and one message of a key wins.

    A message that was replaced, or that gave way, is a cancelled message. So invariant 10 says that
    it never comes, and invariants 1 and 4 that every other message does.

    Args:
      skew_ms: the most that two clocks differ by.
    """

    topic: str
    skew_ms: int
    # Of each key: the messages one of which is the last stored one.
    last: dict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    found: list[str] = field(default_factory=list)
    # Messages of which one was kept; the receipt that named it was lost.
    doubts: list[list[Message]] = field(default_factory=list)
    debounced: list[Entry] = field(default_factory=list)

    def called(self, batch: Sequence[Send]) -> None:
        """Note that a batch is about to be sent. Its messages may replace others from now on."""
        for row, send in enumerate(batch):
            before = [entry.message for entry in self.last[send.key]]
            before += [one.message for one in batch[:row] if one.key == send.key]
            for message in before:
                send.may_end(message)
            if send.mode == FIRST:
                send.may_end(send.message)

    def answered(self, send: Send, now_ms: int, replaced: int, kept: int) -> None:
        """Note the first receipt of a message.

        Args:
          replaced: the offset of the message that it replaced; -1: none.
          kept: the offset of the message that was kept instead of it; -1: none.
        """
        entries, named = self.last[send.key], max(replaced, kept)
        old = next((one for one in entries if one.message.offset == named), None)
        if named >= 0 and old is None:
            self.found.append(
                f"replace: the receipt of message {send.message.number} names offset {named},"
                f" which is not the last message of {send.key}"
            )
        ended = send.message if kept >= 0 else old.message if old is not None else None
        for message, amendment in send.ends:
            amendment.answered_ms, amendment.done = now_ms, message is ended
        if named < 0 and len(entries) == 1:
            self._must_have_met(send, entries[0].message, now_ms)
        if kept >= 0:
            return
        new = Entry(send.message, now_ms if old is None else old.began_ms, send.wait_ms)
        self._store(send, [new])

    def _must_have_met(self, send: Send, message: Message, now_ms: int) -> None:
        """Note a violation if the last message was certainly pending, and was not met."""
        is_changed = any(one.done is not False for one in message.amendments)
        if not is_changed and message.earliest_ms > now_ms + self.skew_ms:
            self.found.append(
                f"replace: message {send.message.number} left the pending message"
                f" {message.number} of {send.key} in its place"
            )

    def stored_before(self, send: Send, now_ms: int) -> None:
        """Note that an earlier try has stored a message, and may have replaced another."""
        new, entries = Entry(send.message, now_ms, send.wait_ms), self.last[send.key]
        if send.mode == FIRST and entries:
            self._store(send, [*entries, new])
            self.doubts.append([entry.message for entry in self.last[send.key]])
            return
        gone = {entry.message.number for entry in entries}
        self.doubts = [
            some for some in self.doubts if gone.isdisjoint(message.number for message in some)
        ]
        self._store(send, [new])

    def _store(self, send: Send, entries: list[Entry]) -> None:
        self.last[send.key] = entries
        if send.wait_ms is not None:
            self.debounced.append(entries[-1])

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield messages of which one should have been kept, and none has come."""
        for name in history.topics[self.topic]:
            came = {one.number for one in history.arrivals if one.subscription == name}
            for some in self.doubts:
                numbers = {message.number for message in some}
                if numbers.isdisjoint(came) and not any(map(_is_cancelled, some)):
                    yield f"none of the messages {sorted(numbers)} was kept for {name}"

    def violations(self, history: History) -> Iterator[str]:
        """Yield wrong receipts, and debounced messages that were put off too long."""
        yield from self.found
        latest_ms = {}
        for entry in self.debounced:
            message, wait_ms = entry.message, entry.wait_ms
            if wait_ms is not None and all(one.due_ms is None for one in message.amendments):
                bound_ms = max(entry.began_ms + wait_ms, message.confirmed_ms) + self.skew_ms
                latest_ms[message.number] = bound_ms
        for arrival in history.arrivals:
            late_ms = arrival.due_ms - latest_ms.get(arrival.number, arrival.due_ms)
            if late_ms > 0:
                yield f"replace: message {arrival.number} was put off {late_ms} ms too long"


def _is_cancelled(message: Message) -> bool:
    """Return whether a client cancelled a message, or a known send replaced it."""
    return any(one.done and one.due_ms is None for one in message.amendments)
