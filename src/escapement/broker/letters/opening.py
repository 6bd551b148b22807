"""Steps of mailboxes as they are read: letters decoded, in the thread that has read them."""

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
    """One letter and what is in it, or why that cannot be known."""

    id: int
    advance: Advance | None  # as of inbox.Stored
    content: Content | LetterDamaged


class Found(NamedTuple):
    """A step of a mailbox, opened, and the topic that it is for."""

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
    """A step of each of the first mailboxes, opened; for a thread."""
    return [
        Found(box, topic, step, [_opened(one) for one in step.letters])
        for (box, topic), step in zip(whose, read(connection, *arguments), strict=False)
    ]


def _opened(letter: Stored) -> Opened:
    try:
        return Opened(letter.id, letter.advance, decode_letter(letter.data))
    except LetterDamaged as error:
        return Opened(letter.id, letter.advance, error)
