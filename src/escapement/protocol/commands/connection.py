"""Commands of the connection: handshake, heartbeat and closing."""

from __future__ import annotations

from typing import Annotated

from escapement.protocol.commands.command import Command, command
from escapement.protocol.fields import Count, Explanation, Id, Integer, OptionalName, PlainMap
from escapement.protocol.limits import MAX_ID, MAX_REQUEST_CONTAINERS


@command(1, "client")
class Hello(Command):
    """The first command of a client. ``features`` is reserved for future use."""

    version: Annotated[int, Integer(0, MAX_ID)]
    client: OptionalName
    features: PlainMap

    MAX_CONTAINERS = MAX_REQUEST_CONTAINERS


@command(2, "broker")
class Welcome(Command):
    """The broker's reply to Hello: its name, its id and its limits (see ``limits``)."""

    version: Annotated[int, Integer(0, MAX_ID)]
    broker: OptionalName
    broker_id: OptionalName
    limits: PlainMap

    MAX_CONTAINERS = MAX_REQUEST_CONTAINERS


@command(3, "client", "broker")
class Ping(Command):
    """A request for a Pong with the same token, to check that the other side is alive."""

    token: Count


@command(4, "client", "broker")
class Pong(Command):
    """The reply to Ping."""

    token: Count


@command(5, "client", "broker")
class Goodbye(Command):
    """The last command of a side, which then closes the connection."""

    reason: Explanation


@command(7, "broker")
class Done(Command):
    """The reply to a request without a result (CloseProducer, CloseConsumer, Halt)."""

    request_id: Id
