"""The thresholds of the C library's memory allocator.

glibc takes small blocks from its *heaps*, one for each few threads, and maps large blocks
separately. The system gets a mapped block back when it is freed. It gets only the end of a heap
back, so one small block in use keeps all the free memory below it in the process. By default glibc
moves the limit between small and large up to the largest block that was freed, at most 32 MiB.
"""

from __future__ import annotations

import ctypes
from typing import Final

# Parameters of glibc's mallopt.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def set_thresholds(mapped_bytes: int, kept_bytes: int) -> bool:
    """Set which blocks are mapped separately, and how much free memory stays at a heap's end.

    Returns False if the C library is not glibc, or does not accept the values.

    Args:
      mapped_bytes: the size from which on blocks are mapped separately.
      kept_bytes: if more than this is free at the end of a heap, it is returned to the system.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, mapped_bytes) and mallopt(_TRIM_THRESHOLD, kept_bytes))
