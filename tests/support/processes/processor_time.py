"""The processor seconds of a program's processes by kind, from Linux's ``/proc``.

When a process ends, Linux adds its time to the time of its parent's ended children. Python
processes that Spark starts are children of Java or of a Python daemon. So the time of their ended
children counts as the time of Python workers.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PYTHON: Final = "Python workers"
_OTHERS: Final = "other processes"
# Each kind of process, and a text that its command line contains. The first match counts.
_KINDS: Final = (
    ("broker", "escapement\0serve"),
    ("database", "/mariadbd\0"),
    ("database", "/mysqld\0"),
    ("Java", "java\0"),
    (_PYTHON, "pyspark"),
)


def processor_time() -> dict[str, float]:
    """Return the seconds that this process and its descendants have used, by kind."""
    parents: dict[int, int] = {}
    used: dict[int, tuple[float, float]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended
        own, reaped = (sum(map(int, fields[at : at + 2])) / _TICKS for at in (11, 13))
        parents[int(path.name)], used[int(path.name)] = int(fields[1]), (own, reaped)
    found: dict[str, float] = defaultdict(float)
    for pid, (own, reaped) in used.items():
        if _is_ours(pid, parents):
            kind = _kind(pid)
            found[kind] += own
            if kind in ("Java", _PYTHON):
                found[_PYTHON] += reaped
    return found


def spent(before: dict[str, float]) -> dict[str, float]:
    """Return the seconds used since ``before``, by kind, without kinds below 0.05 s.

    Args:
      before: the result of an earlier ``processor_time``.
    """
    now = processor_time()
    since = {kind: round(now[kind] - before.get(kind, 0.0), 1) for kind in now}
    return {kind: seconds for kind, seconds in sorted(since.items()) if seconds >= 0.05}


def _is_ours(pid: int, parents: dict[int, int]) -> bool:
    while pid > 1 and pid != os.getpid():
        pid = parents.get(pid, 0)
    return pid == os.getpid()


def _kind(pid: int) -> str:
    if pid == os.getpid():
        return "this program"
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return _OTHERS
    return next((kind for kind, word in _KINDS if word in command), _OTHERS)
