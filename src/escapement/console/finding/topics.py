"""The topics in which a page searches."""

from __future__ import annotations

from typing import Final, NamedTuple

from escapement.client.broker import Broker
from escapement.errors import InvalidRequest, NotFound
from escapement.names import DEFAULT_NAMESPACE, DEFAULT_TENANT, NamespaceName, full_name

# A search without a topic covers at most this number of topics. If there are more, the user chooses
# one from a list, which has at most the second number.
MOST_SEARCHED: Final = 50
MOST_LISTED: Final = 200


class Topics(NamedTuple):
    """Topics whose names fit what the user wrote.

    Attributes:
      names: their names, at most ``MOST_LISTED``.
      total: how many there are.
      is_one: whether the user has named exactly one.
      more: whether the broker did not tell all of its topics, so there may be others.
    """

    names: list[str]
    total: int
    is_one: bool = False
    more: bool = False

    @property
    def can_be_searched(self) -> bool:
        """Whether there are any, and few enough to search all of them."""
        return 0 < self.total <= MOST_SEARCHED and not self.more


async def topics_at(broker: Broker, where: str) -> Topics:
    """Return the topics that a text means: a topic, those of a namespace, or a part of names.

    Args:
      where: the text; "" means all topics.
    """
    slashes = where.count("/")
    try:
        full = full_name(where) if where else ""
    except InvalidRequest:
        full = ""
    if full and slashes >= 2:
        if await exists(broker, full):
            return Topics([full], 1, is_one=True)
    elif slashes == 1:
        try:
            name = NamespaceName.parse(where).full
            listed = await broker.admin("topics.list", namespace=name)
            if listed["total"]:
                return _topics(listed, "")
        except (InvalidRequest, NotFound):
            pass  # a part of a name
    answer = await broker.admin("topics.list")
    if where and not slashes:
        of_default = f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}/{where}"
        if of_default in answer["topics"]:
            return Topics([of_default], 1, is_one=True)
    return _topics(answer, where)


async def exists(broker: Broker, topic: str) -> bool:
    """Return whether a topic exists. The user must have the right to look at it."""
    try:
        await broker.admin("topics.get", topic=topic)
    except NotFound:
        return False
    return True


def _topics(answer: dict[str, object], part: str) -> Topics:
    listed = answer["topics"]
    assert isinstance(listed, list)
    part = part.casefold()
    names = [name for name in listed if part in name.casefold()]
    return Topics(names[:MOST_LISTED], len(names), more=answer["total"] != len(listed))
