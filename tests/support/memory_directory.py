"""Where tests keep files that need not survive the machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

_SHARED_MEMORY: Final = Path("/dev/shm")
# Containers often have 64 MiB there, which a database server fills.
_LEAST_FREE_BYTES: Final = 4 << 30


def memory_directory() -> Path | None:
    """Return a directory in memory, where a sync costs nothing; None: there is not enough."""
    if not _SHARED_MEMORY.is_dir():
        return None
    return _SHARED_MEMORY if shutil.disk_usage(_SHARED_MEMORY).free >= _LEAST_FREE_BYTES else None
