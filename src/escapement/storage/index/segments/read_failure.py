"""Failures to read a file of the index: damage of the file, or a limit of this process."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from escapement.errors import IndexDamaged, StorageError

# Errors that say nothing about the file: no descriptor, or no memory, was left to open it.
_LIMITS: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


def read_failure(path: Path, error: OSError) -> StorageError:
    """Return the error to raise if a file of the index cannot be opened or read.

    It is an ``IndexDamaged``, which discards the index, unless the file may be intact.
    """
    if error.errno in _LIMITS:
        return StorageError(f"{path} cannot be read: {error.strerror}. Raise the limit.")
    return IndexDamaged(f"{path}: {error.strerror}")
