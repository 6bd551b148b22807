"""Messages' properties: a map of plain values, packed by whoever publishes.

Nobody checks them on their way, so whoever reads them takes what is there: a job may have packed
text that is no UTF-8, and another client what is no map at all.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

# What of a text is not UTF-8 is shown as the command line and keys show it: \xff.
READABLE: Final = "backslashreplace"
# Kept as it is, for who packs it again.
AS_IS: Final = "surrogateescape"


def read_properties(packed: bytes, unreadable: str = READABLE) -> dict[Any, Any]:
    """The properties of a message; none where it has no map of them.

    Args:
      unreadable: what becomes of text that is no UTF-8, ``READABLE`` or ``AS_IS``.
    """
    if not packed:
        return {}
    try:
        read = msgpack.unpackb(packed, strict_map_key=False, unicode_errors=unreadable)
    except (ValueError, TypeError, msgpack.UnpackException):
        return {}
    return read if isinstance(read, dict) else {}


def pack_again(properties: dict[Any, Any]) -> bytes:
    """What was read ``AS_IS``, as it was."""
    packed: bytes = msgpack.packb(properties, unicode_errors=AS_IS)
    return packed
