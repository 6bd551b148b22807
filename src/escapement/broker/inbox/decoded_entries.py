"""Reads inbox entries and decodes them in the same thread, for the inbox relay.

An *inbox target* is a topic name with entries that wait to be moved into the topic's log. A *step*
is the bounded number of entries of a target that are moved together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from escapement.broker.topic.topic import Topic
from escapement.errors import InboxEntryDamaged
from escapement.storage.engine.base import Connection
from escapement.storage.inbox.amend_request import AmendRequests, decode_amend_requests
from escapement.storage.inbox.entry import Content, decode_inbox_entry
from escapement.storage.inbox.inbox import InboxTarget, Step, Stored
from escapement.storage.inbox.staged_batch import Advance


class DecodedEntry(NamedTuple):
    """One inbox entry and its content, or the error if it cannot be decoded."""

    id: int
    advance: Advance | None  # the progress of its staged batch, if a bulk job wrote it
    content: Content | AmendRequests | InboxEntryDamaged


class Found(NamedTuple):
    """A decoded step of an inbox target, and the target's topic."""

    inbox_target: InboxTarget
    topic: Topic
    step: Step
    inbox_entries: list[DecodedEntry]


def open_steps(
    connection: Connection,
    whose: Sequence[tuple[InboxTarget, Topic]],
    read: Callable[..., list[Step]],
    *arguments: object,
) -> list[Found]:
    """Read and decode one step of each target, or of as many of the first as ``read`` returns.

    Blocking.

    Args:
      whose: the targets, each with its topic.
      read: reads the steps; called with ``connection`` and ``arguments``.
    """
    return [
        Found(inbox_target, topic, step, [_decoded(one) for one in step.inbox_entries])
        for (inbox_target, topic), step in zip(whose, read(connection, *arguments), strict=False)
    ]


def _decoded(inbox_entry: Stored) -> DecodedEntry:
    content: Content | AmendRequests | InboxEntryDamaged | None
    try:
        content = decode_amend_requests(inbox_entry.data)
        if content is None:
            content = decode_inbox_entry(inbox_entry.data)
    except InboxEntryDamaged as error:
        content = error
    return DecodedEntry(inbox_entry.id, inbox_entry.advance, content)
