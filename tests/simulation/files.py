"""The file calls of simulated processes: those of Python, which ask the disk first.

While a simulation runs, the functions of Python that open, read, write, sync, rename, delete and
list files are replaced. For a file in an index on a simulated disk, each asks the disk
(``disk.py``) before it does its usual work. Accesses to files that are open for direct writes, or
mapped into memory, do not ask.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from escapement.storage.index.segments import manifest
from simulation.calls import Locks, Mutex
from simulation.disk import Disk, Kind


class _File(io.FileIO):
    """An open file of a simulated disk."""

    def __init__(self, disk: Disk, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self._disk = disk
        self._is_torn = False

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        if self._is_torn:
            self._is_torn = False
            self._disk.fail(Kind.WRITE)
        size, self._is_torn = self._disk.begin_write(len(view))
        return super().write(view[:size])

    def readinto(self, buffer: Any, /) -> int:
        self._disk.call(Kind.READ)
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self._disk.call(Kind.READ)
        return super().readall()


class _Files:
    """The functions that take the place of those of Python."""

    def __init__(self, disks: Sequence[Disk]) -> None:
        self._disks = disks
        self._open, self._open_low, self._fsync, self._pread = io.open, os.open, os.fsync, os.pread

    def of(self, path: Any) -> Disk | None:
        """Return the disk that a process accesses; None for any other file."""
        if not isinstance(path, str | os.PathLike):
            return None
        text = str(os.fspath(path))
        return next((disk for disk in self._disks if disk.has(text)), None)

    def open(
        self, file: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any
    ) -> Any:
        disk = self.of(file)
        if disk is None or "b" not in mode:
            return self._open(file, mode, buffering, *more, **named)
        disk.call(Kind.OPEN if mode[0] == "r" else Kind.CREATE)
        raw = _File(disk, os.fspath(file), mode)
        if not buffering:
            return raw
        size = io.DEFAULT_BUFFER_SIZE if buffering < 2 else buffering
        return io.BufferedReader(raw, size) if mode[0] == "r" else io.BufferedWriter(raw, size)

    def open_low(self, path: Any, flags: int, *more: Any, **named: Any) -> int:
        if (disk := self.of(path)) is not None:
            disk.call(Kind.CREATE if flags & os.O_CREAT else Kind.OPEN)
        return self._open_low(path, flags, *more, **named)

    def fsync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if (disk := self.of(path)) is None:
            self._fsync(descriptor)
        else:
            disk.sync(descriptor, Path(path))

    def pread(self, descriptor: int, size: int, at: int) -> bytes:
        if (disk := self.of(os.readlink(f"/proc/self/fd/{descriptor}"))) is not None:
            disk.call(Kind.READ)
        return self._pread(descriptor, size, at)

    def by_path(self, kind: Kind, usual: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose first argument is a path."""

        def function(path: Any = ".", *more: Any, **named: Any) -> Any:
            if (disk := self.of(path)) is not None:
                disk.call(kind)
            return usual(path, *more, **named)

        return function


@contextlib.contextmanager
def simulated(disks: Sequence[Disk], locks: Locks) -> Iterator[None]:
    """Let the files of these disks, which lie in memory, behave as the disks say.

    A manifest has a lock, which a call keeps while it waits for the disk. So others wait for it in
    virtual time, too.
    """
    files = _Files(disks)
    kinds = {
        "rename": Kind.RENAME,
        "unlink": Kind.DELETE,
        "mkdir": Kind.MAKE_DIRECTORY,
        "listdir": Kind.LIST,
        "scandir": Kind.LIST,
    }
    wrong: list[tuple[Any, str, Any]] = [
        *((os, name, files.by_path(kind, getattr(os, name))) for name, kind in kinds.items()),
        (os, "open", files.open_low),
        (os, "fsync", files.fsync),
        (os, "pread", files.pread),
        (io, "open", files.open),
        (builtins, "open", files.open),
        (manifest, "Lock", lambda: Mutex(locks)),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, function in wrong:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, function)
        yield
