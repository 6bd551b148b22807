"""Commands about the connection itself: handshake, heartbeat, closing, and empty replies."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from escapement.protocol.commands.command import Command, command
from escapement.protocol.fields import (
    Count,
    Explanation,
    Id,
    Integer,
    OptionalName,
    PlainMap,
    Text,
)
from escapement.protocol.limits import MAX_ID, MAX_REQUEST_CONTAINERS, MAX_TOKEN_CHARS


@command(1, "client")
class Hello(Command):
    """The first command of a client: the protocol version that it speaks, its name and its token.

    ``escapement.protocol.limits`` has the names of the features. Unknown ones are ignored. A client
    without a token omits the field.
    """

    version: Annotated[int, Integer(0, MAX_ID)]
    client: OptionalName
    features: PlainMap
    token: Annotated[str, Text(MAX_TOKEN_CHARS)] = field(default="", repr=False)

    OPTIONAL_FIELDS = 1
    MAX_CONTAINERS = MAX_REQUEST_CONTAINERS


@command(2, "broker")
class Welcome(Command):
    """The broker's reply to Hello: its protocol version, name, id and limits.

    ``escapement.protocol.limits`` has the names of the limits.
    """

    version: Annotated[int, Integer(0, MAX_ID)]
    broker: OptionalName
    broker_id: OptionalName
    limits: PlainMap

    MAX_CONTAINERS = MAX_REQUEST_CONTAINERS


@command(3, "client", "broker")
class Ping(Command):
    """A request to answer with Pong and the same token, to check that the other side is alive."""

    token: Count


@command(4, "client", "broker")
class Pong(Command):
    """The reply to Ping, with the token of the Ping."""

    token: Count


@command(5, "client", "broker")
class Goodbye(Command):
    """The last command that a side sends before the connection is closed, with the reason."""

    reason: Explanation


@command(7, "broker")
class Done(Command):
    """The reply to a request that has no result: CloseProducer, CloseConsumer or Halt."""

    request_id: Id
