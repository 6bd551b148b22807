"""Serializers, which convert the application's values to payloads (bytes) and back.

A serializer is ``bytes`` (the default: values are bytes and stay as they are), ``str`` (UTF-8),
``JSON``, ``MSGPACK``, or a pair of functions ``(dumps, loads)``, such as
``(Order.SerializeToString, Order.FromString)`` for Protocol Buffers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgpack

from escapement.errors import InvalidRequest


class Serializer(NamedTuple):
    """A pair of functions: ``dumps`` converts a value to bytes, ``loads`` converts it back."""

    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes], Any]


SerializerLike = Serializer | tuple[Callable[[Any], bytes], Callable[[bytes], Any]] | type


def _same(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidRequest(
        f"a value of type {type(value).__name__} is not bytes: choose a serializer"
    )


def _encoded(value: Any) -> bytes:
    if not isinstance(value, str):
        raise InvalidRequest(f"a value of type {type(value).__name__} is not a str")
    return value.encode()


def _as_json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"a value cannot be encoded as JSON: {error}") from error


def _as_msgpack(value: Any) -> bytes:
    try:
        packed: bytes = msgpack.packb(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"a value cannot be encoded as msgpack: {error}") from error
    return packed


BYTES: Final = Serializer(_same, bytes)
STR: Final = Serializer(_encoded, bytes.decode)
JSON: Final = Serializer(_as_json, json.loads)
MSGPACK: Final = Serializer(_as_msgpack, msgpack.unpackb)


def serializer(choice: SerializerLike) -> Serializer:
    """Return the pair of functions for the application's ``choice`` of a serializer.

    Raises:
      InvalidRequest: if ``choice`` is none of the serializers in the docstring of this module.
    """
    if choice is bytes:
        return BYTES
    if choice is str:
        return STR
    if isinstance(choice, tuple) and len(choice) == 2 and all(map(callable, choice)):
        return Serializer(*choice)
    raise InvalidRequest(
        f"{choice!r} is not a serializer: pass bytes, str, JSON, MSGPACK or a pair of functions"
    )
