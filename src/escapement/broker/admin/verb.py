"""The type of a *verb*: a function that runs one administrative operation on a broker.

A verb takes its ``Arguments`` and returns plain values, such as maps, lists and text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from escapement.access.coverage import Coverage
from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.broker import Broker
from escapement.broker.topic.topic import Topic
from escapement.names import NamespaceName

# The most rows of one listing, which must fit a frame of the wire protocol.
MAX_ROWS: Final = 10_000

Verb = Callable[[Broker, Arguments], Awaitable[Plain]]


def topic_of(broker: Broker, given: Arguments) -> Topic:
    """Take a verb's argument ``topic``, and return that topic.

    Raises:
      NotFound: if the topic does not exist.
    """
    return broker.registry.topic(given.topic_name("topic"))


def beginning_of(broker: Broker, within: str | None, seen: Coverage) -> str:
    """Return how the full names of a namespace's topics begin; "" if ``within`` is None.

    Args:
      seen: what the caller may see. A role that sees only some topics of the namespace is not told
        whether it exists.

    Raises:
      NotFound: if the namespace does not exist.
    """
    if within is None:
        return ""
    name = NamespaceName.parse(within)
    if f"{name.full}/*" in seen:
        broker.registry.namespaces.find(name)
    return f"{name.full}/"
