"""Dedup keys: what says that two messages are the same one.

A key is any text. What travels and is remembered is its *digest*, 128 bits of BLAKE2b, so
that a column of keys has one width; a message without a key has sixteen zero bytes there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from escapement.errors import InvalidRequest

# One digest; two of them are equal or not, and their order means nothing.
DIGEST: Final = np.dtype("V16")
NO_DIGEST: Final = bytes(16)

Digests = npt.NDArray[np.void]


def digest(key: str) -> bytes:
    """The digest of a key.

    Raises:
      InvalidRequest: if it is no text, or empty.
    """
    if not isinstance(key, str) or not key:
        raise InvalidRequest(f"a dedup key is a text that is not empty, not {key!r}")
    try:
        text = key.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"the dedup key {key!r} is no text that UTF-8 can hold") from None
    return blake2b(text, digest_size=DIGEST.itemsize).digest()


def digests(keys: Sequence[str | None]) -> Digests:
    """The digests of keys, None for no key; V16[n]. Raises ``InvalidRequest``."""
    if not isinstance(keys, Iterable):
        raise InvalidRequest(f"dedup keys are one for each message, not {keys!r}")
    return column([NO_DIGEST if key is None else digest(key) for key in keys])


def column(found: Sequence[bytes]) -> Digests:
    """A column of digests."""
    return np.frombuffer(b"".join(found), DIGEST)


def halves(column: Digests) -> npt.NDArray[Any]:
    """The digests as two columns of u64, which numpy can sort and search; uint64[n, 2]."""
    return np.ascontiguousarray(column).view("<u8").reshape(-1, 2)
