"""What travels with a value (key, properties, priority), checked and as bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgpack
import numpy as np
import numpy.typing as npt

from escapement.errors import InvalidRequest
from escapement.message import Blobs
from escapement.names import check_name

MAX_PRIORITY: Final = 255


def key(text: str) -> bytes:
    """A key as bytes."""
    if not isinstance(text, str):
        raise InvalidRequest(f"a key of type {type(text).__name__} is not a str")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"the key {text!r} is no text that UTF-8 can hold") from None


def group(name: str) -> bytes:
    """The name of a group as bytes. Raises ``InvalidRequest``."""
    if not isinstance(name, str):
        raise InvalidRequest(f"a group named by a {type(name).__name__} is not one: name it by str")
    return check_name("group", name).encode()


def several(what: str, values: Any) -> Any:
    """The values themselves. Raises ``InvalidRequest`` unless there may be one for each message."""
    if isinstance(values, str | bytes) or not isinstance(values, Collection):
        raise InvalidRequest(f"{what} are a list, not {type(values).__name__}")
    return values


def as_map(properties: Mapping[str, Any] | None) -> dict[str, Any]:
    """Properties as a dict of their own. Raises ``InvalidRequest``."""
    if properties is not None and not isinstance(properties, Mapping):
        raise InvalidRequest(f"properties are a map, not {type(properties).__name__}")
    return dict(properties or {})


def groups(names: str | Sequence[str | None] | None, count: int) -> Blobs | None:
    """The groups of ``count`` messages, given as one for all or one each."""
    if names is None:
        return None
    if isinstance(names, str):
        return Blobs.of([group(names)] * count)
    listed = several("groups", names)
    packed = {name: b"" if name is None else group(name) for name in _distinct(listed)}
    return Blobs.of([packed[name] for name in listed])


def _distinct(names: Sequence[str | None]) -> Iterable[str | None]:
    """Each once, where there are as many as messages and few that differ."""
    try:
        return set(names)
    except TypeError:  # not all of them are text, which the first that is not will say
        return names


def properties(values: Mapping[str, Any]) -> bytes:
    """Properties as a msgpack map."""
    if not all(isinstance(name, str) for name in as_map(values)):
        raise InvalidRequest("the names of properties are strings")
    try:
        packed: bytes = msgpack.packb(dict(values))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"properties hold plain values only: {error}") from None
    return packed


def check_priority(priority: int) -> None:
    """Raise ``InvalidRequest`` unless it is a priority."""
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise InvalidRequest(f"a priority is 0 to {MAX_PRIORITY}, not {priority!r}")


def priorities(values: Any, count: int) -> npt.NDArray[np.uint8] | None:
    """The priorities of ``count`` messages, given as one for all or one each."""
    if values is None:
        return None
    column = np.asarray(values)
    if column.dtype.kind not in "iu" or column.ndim > 1:
        raise InvalidRequest("priorities are one integer, or one each")
    if column.size and not (column.min() >= 0 and column.max() <= MAX_PRIORITY):
        raise InvalidRequest(f"a priority is 0 to {MAX_PRIORITY}")
    if column.ndim == 0:
        return np.full(count, column, np.uint8)
    return column.astype(np.uint8)
