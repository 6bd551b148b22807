"""Message properties in a form that fits an answer.

Publishers may nest properties deeper, and put more into them, than an answer can hold. Properties
that do not fit are shown as text.
"""

from __future__ import annotations

from typing import Final

from escapement.broker.admin.arguments import Plain
from escapement.properties import read_properties
from escapement.protocol.fields import check_plain

# The most lists and maps in the properties of one message. Those of 1000 messages fit an answer.
_MOST_CONTAINERS: Final = 100
_EMPTY: Final = b"\x80"


def readable(packed: bytes, depth: int) -> dict[str, Plain]:
    """Return the properties as plain values.

    Args:
      depth: the number of lists and maps of the answer that enclose them.
    """
    found = read_properties(packed)
    if not found and packed not in (b"", _EMPTY):
        return {"": f"{len(packed)} bytes that are not a map"}
    try:
        if check_plain(found, depth) <= _MOST_CONTAINERS:
            return found
    except ValueError:
        pass
    return {str(name): repr(value) for name, value in found.items()}
