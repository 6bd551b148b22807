"""Patterns of topics: what a grant applies to.

    ====================  =================================================
    pattern               topics that it covers
    ====================  =================================================
    ``shop/eu/orders``    this topic
    ``orders``            the topic ``public/default/orders``
    ``shop/eu/order-*``   topics of the namespace whose names begin so
    ``shop/eu/*``         all topics of the namespace
    ``shop/*``            all topics of the tenant
    ``table://shop/x``    this message table
    ``table://shop/*``    all message tables of the database
    ``*``                 everything
    ====================  =================================================

A wildcard stands only at the end. Only ``*`` covers both topics and message tables. A request that
concerns a whole namespace needs a right on a pattern, such as ``shop/eu/*``. So a pattern may cover
another pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from escapement.errors import InvalidRequest
from escapement.names import check_name, full_name

_SCHEME: Final = "persistent://"
_TABLE_SCHEME: Final = "table://"
_KINDS: Final[tuple[str, ...]] = ("tenant", "namespace", "topic")
_TABLE_KINDS: Final[tuple[str, ...]] = ("database", "topic")


@dataclass(frozen=True, slots=True, order=True)
class Pattern:
    """A pattern in its only form: the full name of a topic, or the beginning of one and a ``*``."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Parse a pattern.

        Raises:
          InvalidRequest: if it is not one; the message says how to write it.
        """
        if not isinstance(text, str):
            raise InvalidRequest("A pattern must be a text, such as 'shop/eu/*'.")
        start, star, rest = text.partition("*")
        if not star:
            return cls(_topic(text))
        if rest:
            raise InvalidRequest(
                f"{text!r:.80} is not a pattern: a wildcard may stand only at the end, as in "
                "'shop/eu/*'."
            )
        return ALL if not start else cls(_beginning(start) + "*")

    @property
    def is_wild(self) -> bool:
        """Whether the pattern ends with a wildcard."""
        return self.text.endswith("*")

    def covers(self, other: Pattern) -> bool:
        """Return whether all topics of the other pattern are topics of this one."""
        if self.text == other.text or self.text == "*":
            return True
        return self.is_wild and other.text != "*" and other.text.startswith(self.text[:-1])

    def __str__(self) -> str:
        return self.text


# The pattern that covers everything, and all message tables.
ALL: Final = Pattern("*")
ALL_TABLES: Final = Pattern(_TABLE_SCHEME + "*")


def _topic(text: str) -> str:
    try:
        return full_name(text)
    except InvalidRequest as error:
        hint = ""
        if text.count("/") == 1:
            hint = f" For all topics of a namespace, write '{text}/*'."
        raise InvalidRequest(f"{error}.{hint}") from None


def _beginning(start: str) -> str:
    """Check the text before a wildcard, and return it in its full form."""
    scheme, kinds, least = "", _KINDS, 2
    if start.startswith(_TABLE_SCHEME):
        scheme, kinds, least = _TABLE_SCHEME, _TABLE_KINDS, 1
        start = start.removeprefix(_TABLE_SCHEME)
    parts = start.removeprefix(_SCHEME).split("/")
    if not least <= len(parts) <= len(kinds):
        raise InvalidRequest(
            f"'{scheme}{start:.80}*' is not a pattern: begin with the tenant, as in 'shop/*', "
            "'shop/eu/*' or 'shop/eu/order-*'. For everything, write '*'."
        )
    for kind, part in zip(kinds, parts[:-1], strict=False):
        check_name(kind, part)
    check_name(kinds[len(parts) - 1], parts[-1] + "x")  # any name that begins so
    return scheme + "/".join(parts)
