"""A verb: a function that runs one operation on a broker and returns plain values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.broker import Broker
from escapement.broker.topic.topic import Topic

# The most rows of one listing, which must fit a frame.
MAX_ROWS: Final = 10_000

Verb = Callable[[Broker, Arguments], Awaitable[Plain]]


def topic_of(broker: Broker, given: Arguments) -> Topic:
    """Take the topic of a verb. Raises ``NotFound``."""
    return broker.registry.topic(given.topic_name("topic"))
