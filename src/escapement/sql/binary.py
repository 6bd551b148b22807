"""Bytes in statements, as base64 that every driver passes on unchanged.

Some drivers do not pass bytes on. aiomysql raises a TypeError with the versions of PyMySQL that
escapement needs. asyncmy escapes bytes wrongly in the SQL mode NO_BACKSLASH_ESCAPES.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Final

PLACEHOLDER: Final = "FROM_BASE64(%s)"


def encoded(data: bytes) -> str:
    """Return the parameter of a ``PLACEHOLDER``."""
    return b64encode(data).decode()
