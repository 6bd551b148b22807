"""Checks of a message's key, properties, priority and group, and their conversion to bytes.

The functions for one message return bytes. The functions for many messages return columns, which
the protocol uses for a batch. An argument that is not valid raises ``InvalidRequest``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from escapement.errors import InvalidRequest
from escapement.message import MAX_PRIORITY, Blobs
from escapement.names import check_name


def key(text: str | None) -> bytes:
    """Return a message's key in UTF-8, empty for None. Raises ``InvalidRequest``."""
    if text is None:
        return b""
    if not isinstance(text, str):
        raise InvalidRequest(f"a key must be a str, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"the key {text!r} cannot be encoded as UTF-8") from None


def group(name: str | None) -> bytes:
    """Return the name of a message group as bytes, empty for None. Raises ``InvalidRequest``."""
    return b"" if name is None else check_name("group", name).encode()


def several(what: str, values: Any) -> Any:
    """Return ``values`` if it is a list or another collection, but neither a string nor a map.

    Args:
      what: the name of the argument, for the error message.

    Raises:
      InvalidRequest: if it is anything else.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Collection):
        raise InvalidRequest(
            f"{what} must be a list with one item per message, not {type(values).__name__}"
        )
    return values


def column(what: str, values: Any, encode: Callable[[Any], bytes]) -> Blobs | None:
    """Return the values of many messages as a column of byte strings, or None if there are none.

    Args:
      what: the name of the argument, for error messages.
      values: None, or a list with one value or None per message.
      encode: converts one value, or None, to bytes.

    Raises:
      InvalidRequest: if ``values`` is not a list, or a value is not valid.
    """
    return None if values is None else Blobs.of([encode(value) for value in several(what, values)])


def as_map(properties: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a message's properties as a new dict, empty for None. Raises ``InvalidRequest``."""
    if properties is not None and not isinstance(properties, Mapping):
        raise InvalidRequest(f"properties must be a map, not {type(properties).__name__}")
    return dict(properties or {})


def properties(values: Mapping[str, Any] | None) -> bytes:
    """Return a message's properties as a msgpack map, or no bytes if there are no properties.

    Raises:
      InvalidRequest: if ``values`` is not a map from str to values that msgpack can encode.
    """
    if not values:
        return b""
    named = as_map(values)
    if not all(isinstance(name, str) for name in named):
        raise InvalidRequest("the names of properties must be str")
    try:
        packed: bytes = msgpack.packb(named)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(_unfit_property(named)) from None
    return packed


def _unfit_property(named: dict[str, Any]) -> str:
    """Return an error message about the first property that msgpack cannot encode."""
    for name, value in named.items():
        try:
            msgpack.packb(value)
        except (TypeError, ValueError, OverflowError) as error:
            return (
                f"property {name!r} of type {type(value).__name__} cannot be encoded ({error}). "
                "Properties must be str, int from -2**63 to 2**64 - 1, float, bool, bytes, None, "
                "or lists and maps of these."
            )
    return "the properties cannot be encoded together: they are too large"


def check_priority(priority: int) -> None:
    """Raise ``InvalidRequest`` unless ``priority`` is an integer from 0 to 255."""
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise InvalidRequest(
            f"a priority must be an integer from 0 to {MAX_PRIORITY}, not {priority!r}"
        )


def priorities(values: Any, count: int) -> npt.NDArray[np.uint8] | None:
    """Return the priorities of a batch of messages as a column, or None if ``values`` is None.

    Args:
      values: one integer for all messages, or one integer per message.
      count: the number of messages.

    Raises:
      InvalidRequest: if a priority is not an integer from 0 to 255.
    """
    if values is None:
        return None
    column = np.asarray(values)
    if column.dtype.kind not in "iu" or column.ndim > 1:
        raise InvalidRequest("priorities must be one integer, or one integer per message")
    if column.size and not (column.min() >= 0 and column.max() <= MAX_PRIORITY):
        raise InvalidRequest(f"a priority must be an integer from 0 to {MAX_PRIORITY}")
    if column.ndim == 0:
        return np.full(count, column, np.uint8)
    return column.astype(np.uint8)
