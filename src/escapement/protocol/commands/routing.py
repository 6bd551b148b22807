"""Commands about the broker that owns a bundle of topics (several brokers on one database)."""

from __future__ import annotations

from typing import Annotated

from escapement.protocol.commands.command import Command, command
from escapement.protocol.fields import Count, Id, Integer, OptionalId, Text, Topic
from escapement.protocol.limits import MAX_ADDRESS_CHARS, MAX_BUNDLE

_Bundle = Annotated[int, Integer(0, MAX_BUNDLE)]
_Address = Annotated[str, Text(MAX_ADDRESS_CHARS)]


@command(60, "broker")
class Moved(Command):
    """The news that another broker owns a bundle, with its address and the epoch of its lease.

    It answers the request ``request_id``, which had no effect because its topic belongs to
    ``bundle``. With a ``request_id`` of 0 it is about the bundle of this connection: it answers
    Hello, or tells that the bundle has moved. Then Goodbye follows. An ``address`` of "" means that
    no owner is known yet.
    """

    request_id: OptionalId
    bundle: _Bundle
    address: _Address
    epoch: Count


@command(61, "client")
class Lookup(Command):
    """A request for the bundle of a topic, and for the broker that owns this bundle."""

    request_id: Id
    topic: Topic


@command(62, "broker")
class Owner(Command):
    """The reply to Lookup. ``bundle``, ``address`` and ``epoch`` are those of Moved.

    ``bundles`` is the number of bundles. A broker tells it only to clients with FEATURE_BUNDLES.
    """

    request_id: Id
    bundle: _Bundle
    address: _Address
    epoch: Count
    bundles: Annotated[int, Integer(1, MAX_BUNDLE + 1)] = 1

    OPTIONAL_FIELDS = 1
