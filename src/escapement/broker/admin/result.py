"""The types of the results of verbs.

The return type of a verb's function describes its result. It is made of typed dictionaries, which
mypy compares with the code, and of the classes below. ``side_port/schemas.py`` makes the schemas of
the OpenAPI document from it.
"""

from __future__ import annotations

from typing import TypedDict


class Fields:
    """The fields of some classes, together in one map.

    ``Annotated[dict[str, Plain], Fields(Head, TopicPolicy)]`` is the type of a map that is made
    from several objects. The classes are typed dictionaries, dataclasses, named tuples or policies.
    """

    def __init__(self, *classes: type) -> None:
        self.classes = classes


class Nothing(TypedDict):
    """The result of a verb that has nothing to say."""


class Deleted(TypedDict):
    """The name of a deleted object."""

    deleted: str
