"""Messages' properties as far as an answer may hold them.

Whoever publishes may nest them deeper, and put more into them, than an answer takes: what
does not fit is shown as text.
"""

from __future__ import annotations

from typing import Final

from escapement.broker.admin.arguments import Plain
from escapement.properties import read_properties
from escapement.protocol.fields import check_plain

# Lists and maps of one message's: of a thousand messages they fit an answer.
_MOST_CONTAINERS: Final = 100
_EMPTY: Final = b"\x80"


def readable(packed: bytes, depth: int) -> dict[str, Plain]:
    """The properties, plain.

    Args:
      depth: in how many lists and maps of the answer they stand.
    """
    found = read_properties(packed)
    if not found and packed not in (b"", _EMPTY):
        return {"": f"{len(packed)} bytes that are no map"}
    try:
        if check_plain(found, depth) <= _MOST_CONTAINERS:
            return found
    except ValueError:
        pass
    return {str(name): repr(value) for name, value in found.items()}
