"""Tokens: the secrets by which clients prove their roles.

A token is a text such as ``esc_<id>_<secret>_<crc>``. Its parts are hexadecimal: a public id of 12
digits, a random secret of 256 bits, and a CRC-32 of the text before it. The CRC finds typing
mistakes before a connection is made, and lets scanners recognise leaked tokens. The broker stores
only the SHA-256 of the text. A random secret needs no slow hash.

No error and no ``repr`` shows the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass, field
from typing import Final

from escapement.errors import Unauthenticated

ID_DIGITS: Final = 12
DIGEST_BYTES: Final = 32
# 256 bits: too many to guess.
_SECRET_BYTES: Final = 32
_FORM: Final = re.compile(r"(esc_([0-9a-f]{12})_([0-9a-f]{64}))_([0-9a-f]{8})")
_ID: Final = re.compile(rf"[0-9a-f]{{{ID_DIGITS}}}")


@dataclass(frozen=True, slots=True)
class Token:
    """A token. Its id may be shown; its secret may not."""

    id: str
    secret: str = field(repr=False)

    @classmethod
    def new(cls) -> Token:
        """Return a new random token."""
        return cls(secrets.token_hex(ID_DIGITS // 2), secrets.token_hex(_SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Token:
        """Parse the text of a token.

        Raises:
          Unauthenticated: if it is not a token, or its checksum does not fit.
        """
        match = _FORM.fullmatch(text)
        if match is None or _checksum(match[1]) != match[4]:
            raise Unauthenticated(
                "The token is mistyped or incomplete: its form or its checksum is wrong. Copy it "
                "again, or create another with `escapement admin tokens create ROLE`."
            )
        return cls(match[2], match[3])

    @property
    def text(self) -> str:
        """The token as its holder keeps it. Show it only once."""
        body = f"esc_{self.id}_{self.secret}"
        return f"{body}_{_checksum(body)}"

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the text. It does not reveal the secret."""
        return hashlib.sha256(self.text.encode("ascii")).digest()

    def has_digest(self, digest: bytes) -> bool:
        """Return whether ``digest`` is that of this token, in constant time."""
        return hmac.compare_digest(self.digest, digest)


def is_token_id(text: str) -> bool:
    """Return whether a text has the form of the id of a token."""
    return _ID.fullmatch(text) is not None


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode('ascii')):08x}"
