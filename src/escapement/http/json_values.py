"""Arguments and results as JSON. Bytes are ``{"base64": "…"}`` in both directions."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from math import isfinite
from typing import Any, Final

from escapement.errors import InvalidRequest

_BASE64: Final = "base64"


def decode(body: bytes) -> dict[str, Any]:
    """Return the arguments of a verb from the body of a request; an empty body has none.

    Raises:
      InvalidRequest: if the body is not a JSON object, or has text that is not Unicode: half of a
        surrogate pair.
    """
    try:
        found = json.loads(body or b"{}", object_hook=_unwrapped)
        encode(found)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"The body is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InvalidRequest("The body must be a JSON object with the arguments of the verb.")
    return found


def encode(value: Any) -> bytes:
    """Return a result of a verb as JSON. JSON has no numbers such as NaN; they become text."""
    try:
        text = json.dumps(value, default=_wrapped, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), default=_wrapped, ensure_ascii=False)
    return text.encode()


def restored(value: Any) -> Any:
    """Return a value that was decoded elsewhere, with bytes in the place of their objects.

    Raises:
      InvalidRequest: if an object has text that is not base64, or values are nested too deeply.
    """
    try:
        return _restored(value)
    except RecursionError:
        raise InvalidRequest("A value is nested too deeply.") from None


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return _unwrapped({name: _restored(one) for name, one in value.items()})
    return [_restored(one) for one in value] if isinstance(value, list) else value


def _finite(value: Any) -> Any:
    """Return a value with text in the place of infinite numbers, and of those that are NaN."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _unwrapped(found: dict[str, Any]) -> Any:
    text = found.get(_BASE64)
    if len(found) != 1 or not isinstance(text, str):
        return found
    try:
        return b64decode(text, validate=True)
    except binascii.Error as error:
        raise InvalidRequest(f"A value is not base64: {error}.") from error


def _wrapped(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return {_BASE64: b64encode(value).decode()}
    return str(value)
