"""Dead letters and redrives: each death has one dead letter, and each redrive one new message."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from simulation.history import History


class Letter(NamedTuple):
    """A dead letter: the number of its message, and the offset at which that died."""

    number: int
    original_offset: int


@dataclass
class RedriveCheck:
    """No message is lost or doubled on its way to the dead letters and back."""

    topic: str
    subscription: str
    letters: dict[int, Letter] = field(default_factory=dict)  # all that were listed, by offset
    remaining: set[int] = field(default_factory=set)  # of the last listing
    asked: set[int] = field(default_factory=set)  # of redrives, answered or not
    redriven: set[int] = field(default_factory=set)  # of redrives that were answered
    found: list[str] = field(default_factory=list)

    def list(self, history: History, letters: Mapping[int, Letter]) -> None:
        """Note all dead letters that are listed now."""
        for offset in sorted(letters.keys() & self.redriven):
            self.found.append(f"redrive: dead letter {offset} is listed after its redrive")
        for offset in sorted(self.remaining - letters.keys() - self.asked):
            self.found.append(f"redrive: dead letter {offset} has gone")
        self.letters |= letters
        self.remaining = set(letters)
        numbers = {letter.number for letter in self.letters.values()}
        history.dead[self.subscription] = Counter(numbers)

    def ask(self, history: History, offsets: Set[int]) -> None:
        """Note that dead letters are about to be redriven."""
        self.asked |= offsets
        history.redrives = Counter(self.letters[offset].number for offset in self.asked)

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield redriven messages that have not come, and messages that are neither acknowledged
        nor dead.
        """
        lives = self._lives(history)
        gone = Counter(
            letter.number
            for offset, letter in self.letters.items()
            if offset in self.asked - self.remaining
        )
        for number, count in gone.items():
            if (back := len(lives[number]) - 1) < count:
                yield f"message {number} was redriven {count} times and came back {back} times"
        died = {letter.original_offset for letter in self.letters.values()}
        for number, offsets in lives.items():
            for offset in sorted(offsets - died):
                if (self.subscription, offset) not in history.ack_sent:
                    yield f"message {number} is neither finished nor dead at offset {offset}"

    def _lives(self, history: History) -> dict[int, set[int]]:
        """Return the offsets at which each message is known to be stored."""
        lives: dict[int, set[int]] = defaultdict(set)
        for message in history.messages:
            if message.topic == self.topic and message.offset >= 0:
                lives[message.number].add(message.offset)
        for arrival in history.arrivals:
            if arrival.subscription == self.subscription:
                lives[arrival.number].add(arrival.offset)
        return lives

    def violations(self, history: History) -> Iterator[str]:
        """Yield dead letters that are lost or doubled. The checker knows of doubled messages."""
        yield from self.found
        deaths = Counter(letter.original_offset for letter in self.letters.values())
        for offset, count in deaths.items():
            if count > 1:
                yield f"6: offset {offset} of {self.subscription} has {count} dead letters"
