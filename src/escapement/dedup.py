"""Dedup keys: a topic stores only the first of several messages with the same dedup key.

A dedup key is any text that is not empty. The protocol and the broker use only its *digest*,
128 bits of BLAKE2b, so that a column of digests has the same width for each message. The digest
of a message without a dedup key is 16 zero bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from escapement.errors import InvalidRequest

# The numpy type of one digest: opaque bytes, because digests are only compared for equality.
DIGEST: Final = np.dtype("V16")
NO_DIGEST: Final = bytes(16)

Digests = npt.NDArray[np.void]


def digest(key: str, name: str = "dedup key") -> bytes:
    """Return the digest of a dedup key.

    Args:
      name: what the key is called in error messages.

    Raises:
      InvalidRequest: if the key is not a str, is empty, or cannot be encoded as UTF-8.
    """
    if not isinstance(key, str) or not key:
        raise InvalidRequest(f"a {name} must be a str that is not empty, not {key!r}")
    try:
        text = key.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"the {name} {key!r} cannot be encoded as UTF-8") from None
    return blake2b(text, digest_size=DIGEST.itemsize).digest()


def digests(keys: Sequence[str | None]) -> Digests:
    """Return the digest of each message's dedup key, zero bytes for None; V16[n].

    Raises:
      InvalidRequest: if ``keys`` is not a list, or a dedup key is not valid.
    """
    if not isinstance(keys, Iterable):
        raise InvalidRequest(f"dedup keys must be a list with one key per message, not {keys!r}")
    return column([NO_DIGEST if key is None else digest(key) for key in keys])


def column(found: Sequence[bytes]) -> Digests:
    """Join the digests of dedup keys to a numpy column; V16[n]."""
    return np.frombuffer(b"".join(found), DIGEST)


def halves(column: Digests) -> npt.NDArray[Any]:
    """Return each digest as two integers of 64 bits, which numpy can sort; uint64[n, 2]."""
    return np.ascontiguousarray(column).view("<u8").reshape(-1, 2)
