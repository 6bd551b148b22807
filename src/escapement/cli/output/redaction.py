"""Secrets in text: the passwords of URLs and access tokens, replaced by ``***``.

No code writes a secret on purpose. This is a second line of defence, for errors of other packages
and for settings that are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "***"

# A password may contain any character that a URL allows, even an unescaped @: the last @ before
# the host ends it.
_PASSWORD: Final = re.compile(r"([a-z][a-z0-9+.-]*://[^\s/:@'\"]*):[^\s/'\"]+@", re.IGNORECASE)
# The URL of a database with a password, as an argument of a command.
_DATABASE: Final = re.compile(r"(--[a-z-]+=)?(mysql|mariadb)://[^/]*:[^/]+@.*", re.IGNORECASE)
_TOKEN: Final = re.compile(r"\b(esc_[A-Za-z0-9]+)_[A-Za-z0-9_-]+")


def shows_password(arguments: Iterable[str]) -> bool:
    """Return whether one of a command's arguments is the URL of a database with a password."""
    return any(_DATABASE.fullmatch(one) for one in arguments)


def redacted(text: str) -> str:
    """Return the text without the passwords of URLs and without the secrets of tokens.

    The user of a URL and the id of a token stay, because they say which secret it was.
    """
    if "://" in text:
        text = _PASSWORD.sub(rf"\1:{HIDDEN}@", text)
    return _TOKEN.sub(rf"\1_{HIDDEN}", text) if "esc_" in text else text
