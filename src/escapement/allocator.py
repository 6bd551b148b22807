"""Settings of the C library's memory allocator.

glibc takes small blocks from its *heaps*, also called arenas, and maps large blocks separately.
The system gets a mapped block back when it is freed. It gets only the end of a heap back, so one
small block in use keeps all the free memory below it in the process. By default glibc moves the
limit between small and large up to the largest block that was freed, at most 32 MiB, and threads
take blocks from different heaps, up to eight for each processor.
"""

from __future__ import annotations

import ctypes
from typing import Final

# Parameters of glibc's mallopt.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8


def set_thresholds(mapped_bytes: int, kept_bytes: int) -> bool:
    """Set which blocks are mapped separately, and how much free memory stays at a heap's end.

    Returns False if the C library is not glibc, or does not accept the values.

    Args:
      mapped_bytes: the size from which on blocks are mapped separately.
      kept_bytes: if more than this is free at the end of a heap, it is returned to the system.
    """
    return _set(_MMAP_THRESHOLD, mapped_bytes) and _set(_TRIM_THRESHOLD, kept_bytes)


def share_one_heap() -> bool:
    """Let all threads take small blocks from one heap, so that they reuse what others have freed.

    Returns False if the C library is not glibc.
    """
    return _set(_ARENA_MAX, 1)


def _set(parameter: int, value: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(parameter, value))
