"""Memory that a task's process frees and takes again, kept for it meanwhile.

A task handles megabytes at a time: it takes them, frees them, and takes the next. The allocators
give what is freed back to the system, which clears every page before it gives it out again; where
it has to ask a host for it, that costs more than what is done with the memory. A process of
Spark's does one task after the other, so what one of them used is kept for the next.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from typing import Final

# glibc's names of what may be told its allocator: from which size on a piece is mapped by itself
# (and gone when it is freed), and how much that is free at the end is kept.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
# No piece is as large.
_LARGEST_BYTES: Final = 1 << 30
_KEPT_BYTES: Final = 256 << 20
# By which a user says which allocator Arrow has.
_ARROW_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"


@lru_cache(maxsize=1)
def keep_memory() -> None:
    """From now on this process keeps up to 256 MiB of what it frees; for processes of tasks.

    Where the C library is another than glibc nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    kept = mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    if kept and _ARROW_POOL not in os.environ:
        import pyarrow as pa

        pa.set_memory_pool(pa.system_memory_pool())
