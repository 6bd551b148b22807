"""The description of one value in a row of a message table."""

from __future__ import annotations

from typing import NamedTuple


class Field(NamedTuple):
    """A column of a message table: its name and its type.

    ``type`` is the type as MySQL names it, in lower case and without a length, such as ``varchar``,
    ``decimal`` or ``bigint unsigned``.
    """

    name: str
    type: str
