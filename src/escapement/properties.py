"""The properties of messages: a map of plain values, packed by the publisher.

The broker does not check properties, so code that reads them accepts any bytes: a bulk job may
pack text that is not valid UTF-8, and another client may pack something other than a map.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

# How to read text that is not valid UTF-8 if people shall read it: with escapes such as \xff.
READABLE: Final = "backslashreplace"
# How to read text that is not valid UTF-8 if it is to be copied: ``pack_again`` restores the bytes.
AS_IS: Final = "surrogateescape"


def read_properties(packed: bytes, unreadable: str = READABLE) -> dict[Any, Any]:
    """Return the properties of a message, or an empty dict if ``packed`` is not a map.

    Args:
      packed: the properties, as the publisher packed them with msgpack.
      unreadable: how to treat text that is not valid UTF-8, ``READABLE`` or ``AS_IS``.
    """
    if not packed:
        return {}
    try:
        read = msgpack.unpackb(packed, strict_map_key=False, unicode_errors=unreadable)
    except (ValueError, TypeError, msgpack.UnpackException):
        return {}
    return read if isinstance(read, dict) else {}


def pack_again(properties: dict[Any, Any]) -> bytes:
    """Pack properties that were read with ``AS_IS`` to exactly their original bytes."""
    packed: bytes = msgpack.packb(properties, unicode_errors=AS_IS)
    return packed
