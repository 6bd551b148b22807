"""The child process of a compaction, which merges segments of the delayed index.

It reads a job (which segments to merge, and which messages to leave out) from standard input, and
prints the number of messages in the merged segment. ``Compaction.run`` in the broker starts it.

The process has a low priority and a session of its own, because Linux divides processors between
sessions first and applies priorities inside each session, unless the session itself has a
priority. The process does not outlive the broker: the broker keeps standard input open, and when
that closes, the process ends at once. It then leaves a file that no manifest names.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from escapement.errors import IndexDamaged
from escapement.failpoints import set_by_environment
from escapement.storage.index.merging.compaction import EXIT_DAMAGED, Job, merge_segments

# The priority of the process. The broker comes first, but on an idle machine a merge uses a whole
# core.
_NICENESS = 10


def _end_with_the_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def main() -> int:
    """Merge the segments of the job on standard input, and return the process's exit code."""
    set_by_environment()
    os.nice(_NICENESS)
    with suppress(OSError):  # the file exists only on Linux, and not with every kernel
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
    # os._exit does not join the thread that waits for the end of the parent.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
