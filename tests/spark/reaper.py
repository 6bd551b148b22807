"""Kills of the Python workers of Spark tasks, as the kernel kills them when memory is short."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

# Workers are forked from the daemon and keep its command line.
_DAEMON: Final = [b"-m", b"pyspark.daemon", b"pyspark.worker"]
_PAUSE_S: Final = (0.1, 0.5)


class _Process(NamedTuple):
    id: int
    parent: int
    is_worker: bool  # or the daemon from which workers are forked


def _processes() -> dict[int, _Process]:
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            line = (directory / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            # The name of the command is in parentheses and may contain any character.
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue  # the process has ended
        found[int(directory.name)] = _Process(int(directory.name), parent, line[1:] == _DAEMON)
    return found


def task_workers(root: int) -> list[int]:
    """Return the ids of the Python worker processes of tasks below the process ``root``."""
    all_of_them = _processes()

    def below(process: _Process | None) -> bool:
        while process is not None and process.id != root:
            process = all_of_them.get(process.parent)
        return process is not None

    return [
        process.id
        for process in all_of_them.values()
        if process.is_worker
        and (parent := all_of_them.get(process.parent)) is not None
        and parent.is_worker
        and below(process)
    ]


class Reaper(threading.Thread):
    """A thread that kills up to ``most`` Spark workers, at random times, in a ``with`` block."""

    def __init__(self, root: int, most: int, seed: int) -> None:
        super().__init__(name="reaper")
        self.killed = 0
        self._root = root
        self._most = most
        self._random = random.Random(seed)
        self._over = threading.Event()

    def __enter__(self) -> Reaper:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while self.killed < self._most and not self._over.wait(self._random.uniform(*_PAUSE_S)):
            workers = task_workers(self._root)
            if workers:
                try:
                    os.kill(self._random.choice(workers), signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.killed += 1
