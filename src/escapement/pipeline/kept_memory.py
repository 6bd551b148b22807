"""Allocator settings that keep freed memory in a task's process.

A task allocates and frees megabytes at a time. By default, allocators return freed memory to the
system. The system clears every page before it assigns it again; in a virtual machine it may also
have to ask the host. That costs more than the work on the memory. A worker process of Spark runs
one task after the other, so the memory of one task is kept for the next.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Final

from escapement.allocator import set_thresholds

# Blocks from this size on are returned to the system when they are freed. It is larger than any
# block that a task allocates.
_LARGEST_BYTES: Final = 1 << 30
# Free memory at the end of a heap stays in the process up to this size.
_KEPT_BYTES: Final = 256 << 20
# The environment variable by which a user chooses Arrow's allocator.
_ARROW_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"


@lru_cache(maxsize=1)
def keep_memory() -> None:
    """Keep up to 256 MiB of freed memory in this process; for worker processes of Spark.

    Arrow then uses the same allocator, unless the user has chosen one. Has no effect with a C
    library other than glibc.
    """
    kept = set_thresholds(_LARGEST_BYTES, _KEPT_BYTES)
    if kept and _ARROW_POOL not in os.environ:
        import pyarrow as pa

        pa.set_memory_pool(pa.system_memory_pool())
