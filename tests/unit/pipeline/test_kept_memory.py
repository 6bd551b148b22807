"""Memory that a task's process keeps for the next task."""

from __future__ import annotations

import platform
import subprocess
import sys
from typing import Final

# Counts the new pages while megabytes are allocated and freed repeatedly.
_PROGRAM: Final = """
import resource
import numpy as np
import pyarrow as pa
from escapement.pipeline.kept_memory import keep_memory

def fresh_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(8 << 20, np.uint8)
        pa.allocate_buffer(8 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_memory()
keep_memory()
fresh_pages()
print(fresh_pages(), pa.default_memory_pool().backend_name)
"""


def test_freed_memory_is_reused() -> None:
    """N8: it is not returned to the system, which would clear it each time."""
    said = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True
    )
    pages, pool = said.stdout.split()
    if platform.libc_ver()[0] == "glibc":
        assert (int(pages) < 1_000, pool) == (True, "system")
