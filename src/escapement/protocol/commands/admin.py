"""Administrative requests: a *verb*, such as ``topics.stats``, with arguments, and its reply."""

from __future__ import annotations

from typing import Annotated

from escapement.protocol.commands.command import Command, command
from escapement.protocol.fields import Id, PlainMap, PlainValue, Reason, Text
from escapement.protocol.limits import (
    MAX_FRAME_BYTES,
    MAX_REPLY_CONTAINERS,
    MAX_REQUEST_CONTAINERS,
    MAX_VERB_CHARS,
)


@command(40, "client")
class Admin(Command):
    """An administrative request: the name of what to do, and arguments of plain values."""

    request_id: Id
    verb: Annotated[str, Text(MAX_VERB_CHARS, low=1)]
    arguments: PlainMap
    reason: Reason = ""

    OPTIONAL_FIELDS = 1
    MAX_CONTAINERS = MAX_REQUEST_CONTAINERS
    MEMORY_FACTOR = 20  # strings of two characters


@command(41, "broker")
class AdminReply(Command):
    """The reply to an Admin request: its result, of plain values."""

    request_id: Id
    result: PlainValue

    MAX_BYTES = MAX_FRAME_BYTES
    MAX_CONTAINERS = MAX_REPLY_CONTAINERS
    MAX_ITEMS = MAX_FRAME_BYTES  # no limit of their own
