"""Messages' properties, which whoever publishes packs himself: nothing is checked before."""

from __future__ import annotations

from typing import Any

import msgpack


def read_properties(packed: bytes) -> dict[Any, Any]:
    """The properties of a message; none where it has no map of them."""
    if not packed:
        return {}
    try:
        read = msgpack.unpackb(packed, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException):
        return {}
    return read if isinstance(read, dict) else {}
