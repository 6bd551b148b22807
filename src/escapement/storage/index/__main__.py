"""The child process of a compaction: a job on standard input, a count on standard output.

Started by ``Compaction.run`` and by nobody else. It is polite: it has a low priority, and a
session of its own, because Linux shares processors out between sessions first and looks at
priorities only inside each, unless the session itself is given one. It does not outlive its
parent: standard input stays open as long as the parent lives, and when it closes, the process
ends at once, leaving a file that no manifest names.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from escapement.errors import IndexDamaged
from escapement.storage.index.compaction import EXIT_DAMAGED, Job, merge_segments

_NICENESS = 10  # the broker goes first, but on an idle machine this takes a core


def _end_with_the_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def main() -> int:
    """Do one job; the exit code."""
    os.nice(_NICENESS)
    with suppress(OSError):  # another system than Linux, or one that shares out otherwise
        Path("/proc/self/autogroup").write_text(str(_NICENESS), "ascii")
    job = Job.decode(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    try:
        rows = merge_segments(job)
    except IndexDamaged as damage:
        print(damage, file=sys.stderr)
        return EXIT_DAMAGED
    print(rows, flush=True)
    return 0


if __name__ == "__main__":
    # Without waiting for the thread that waits for the parent.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
