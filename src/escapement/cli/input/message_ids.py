"""Message ids on the command line: ``TOPIC@OFFSET``, or the offset if TOPIC is an argument.

They are parsed after the other parameters, because a message id must belong to the topic.
"""

from __future__ import annotations

import click

from escapement.client.delivery_times import Where
from escapement.client.delivery_times import position as checked_position
from escapement.errors import InvalidRequest
from escapement.names import read_message_id
from escapement.position import Position


def offset_of(id: str, topic: str) -> int:
    """Return the offset of the message ``id`` in ``topic``."""
    return topic_and_offset(id, topic)[1]


def topic_and_offset(id: str, topic: str | None = None) -> tuple[str, int]:
    """Return the full name of the topic of the message ``id``, and the message's offset."""
    try:
        return read_message_id(id, topic)
    except InvalidRequest as error:
        raise click.BadParameter(f"{error}.") from None


def position_of(where: Where, topic: str) -> Position:
    """Return the position in ``topic`` that ``start_position`` has parsed as ``where``."""
    try:
        return checked_position(where, topic)
    except InvalidRequest as error:
        raise click.BadParameter(f"{error}.") from None
