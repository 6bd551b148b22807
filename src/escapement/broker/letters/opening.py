"""Steps of inbox targets: entries are decoded in the thread that reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from escapement.broker.topic.topic import Topic
from escapement.errors import LetterDamaged
from escapement.storage.engine.base import Connection
from escapement.storage.letters.inbox import Mailbox, Step, Stored
from escapement.storage.letters.letter import Content, decode_letter
from escapement.storage.letters.parcel import Advance


class Opened(NamedTuple):
    """One inbox entry and its content, or the error if it cannot be decoded."""

    id: int
    advance: Advance | None  # see inbox.Stored
    content: Content | LetterDamaged


class Found(NamedTuple):
    """A decoded step of an inbox target, and the target's topic."""

    box: Mailbox
    topic: Topic
    step: Step
    letters: list[Opened]


def open_steps(
    connection: Connection,
    whose: Sequence[tuple[Mailbox, Topic]],
    read: Callable[..., list[Step]],
    *arguments: object,
) -> list[Found]:
    """Read and decode a step of each of the first inbox targets. Blocking."""
    return [
        Found(box, topic, step, [_opened(one) for one in step.letters])
        for (box, topic), step in zip(whose, read(connection, *arguments), strict=False)
    ]


def _opened(letter: Stored) -> Opened:
    try:
        return Opened(letter.id, letter.advance, decode_letter(letter.data))
    except LetterDamaged as error:
        return Opened(letter.id, letter.advance, error)
