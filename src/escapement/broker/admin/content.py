"""The content of messages as values that fit the answer of an administrative operation.

The properties of a message may be nested deeper, or have more lists and maps, than an answer can
hold. Such properties are shown as text. Large ones are not shown, because decoding them would delay
other connections.
"""

from __future__ import annotations

from typing import Final

from escapement.broker.admin.arguments import Plain
from escapement.broker.inspection.peek import PAGE_TEXT_BYTES
from escapement.properties import READABLE, read_properties
from escapement.protocol.fields import check_plain

# The most messages of one answer, and the most bytes shown of each payload.
MAX_MESSAGES: Final = 1_000
PREVIEW_BYTES: Final = 512
# The depth at which an answer has the properties of a message: in a map, in a list, in a map.
_DEPTH: Final = 3
# The most lists and maps in the properties of one message. An answer can hold those of 1000
# messages.
_MOST_CONTAINERS: Final = 100
# An empty map, as MessagePack encodes it.
_EMPTY: Final = b"\x80"


def readable_key(key: bytes) -> str | None:
    """Return a message's key as text, cut if it is large; None if it has no key."""
    return key[:PAGE_TEXT_BYTES].decode("utf-8", READABLE) or None


def readable(packed: bytes) -> dict[str, Plain]:
    """Return a message's encoded properties by name: as plain values if they fit, else as text."""
    if len(packed) > PAGE_TEXT_BYTES:
        return {"": f"{len(packed)} bytes; read or consume the message to see them"}
    found = read_properties(packed)
    if not found and packed not in (b"", _EMPTY):
        return {"": f"{len(packed)} bytes that are not a map"}
    try:
        if check_plain(found, _DEPTH) <= _MOST_CONTAINERS:
            return found
    except ValueError:
        pass
    return {str(name): repr(value) for name, value in found.items()}
