"""Greeting, being there, and leaving."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from escapement.protocol.commands.command import Command, command
from escapement.protocol.fields import Count, Explanation, Id, Integer, OptionalName, PlainMap
from escapement.protocol.limits import MAX_ID, MAX_REQUEST_CONTAINERS


@command(1, "client")
@dataclass(frozen=True, slots=True)
class Hello(Command):
    """The client's first command. ``features`` is a map for what comes later."""

    version: Annotated[int, Integer(0, MAX_ID)]
    client: OptionalName
    features: PlainMap

    MAX_CONTAINERS = MAX_REQUEST_CONTAINERS


@command(2, "broker")
@dataclass(frozen=True, slots=True)
class Welcome(Command):
    """The broker's answer to Hello: who it is and how much it takes (see ``limits``)."""

    version: Annotated[int, Integer(0, MAX_ID)]
    broker: OptionalName
    broker_id: OptionalName
    limits: PlainMap

    MAX_CONTAINERS = MAX_REQUEST_CONTAINERS


@command(3, "client", "broker")
@dataclass(frozen=True, slots=True)
class Ping(Command):
    """Asks for a Pong with the same token: is anyone there?"""

    token: Count


@command(4, "client", "broker")
@dataclass(frozen=True, slots=True)
class Pong(Command):
    """The answer to Ping."""

    token: Count


@command(5, "client", "broker")
@dataclass(frozen=True, slots=True)
class Goodbye(Command):
    """The sender's last command: it will close, having answered what it can."""

    reason: Explanation


@command(7, "broker")
@dataclass(frozen=True, slots=True)
class Done(Command):
    """A request that has nothing else to tell (CloseProducer, CloseConsumer) took effect."""

    request_id: Id
