"""The content of messages in a form that fits an answer.

Publishers may nest properties deeper, and put more into them, than an answer can hold. Properties
that do not fit are shown as text.
"""

from __future__ import annotations

from typing import Final

from escapement.broker.admin.arguments import Plain
from escapement.properties import READABLE, read_properties
from escapement.protocol.fields import check_plain

# The most messages of one answer, and the most bytes shown of each payload.
MAX_SHOWN: Final = 1_000
PREVIEW_BYTES: Final = 512
# The nesting of properties in an answer: in a map, in a list, in a map.
_DEPTH: Final = 3
# The most lists and maps in the properties of one message. Those of 1000 messages fit an answer.
_MOST_CONTAINERS: Final = 100
_EMPTY: Final = b"\x80"


def readable_key(key: bytes) -> str | None:
    """Return the key as text; None if there is none."""
    return key.decode("utf-8", READABLE) or None


def readable(packed: bytes) -> dict[str, Plain]:
    """Return the properties as plain values."""
    found = read_properties(packed)
    if not found and packed not in (b"", _EMPTY):
        return {"": f"{len(packed)} bytes that are not a map"}
    try:
        if check_plain(found, _DEPTH) <= _MOST_CONTAINERS:
            return found
    except ValueError:
        pass
    return {str(name): repr(value) for name, value in found.items()}
