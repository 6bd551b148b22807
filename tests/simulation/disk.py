"""The disk of a process: a power failure loses bytes that were not synced.

The code under test writes real files, into memory. ``os.fsync`` is replaced while a simulation
runs: it notes durable bytes and names, and can fail. The disk remembers the content of each synced
file and the names of each synced directory. After a power failure the directory has

- every name as of the last sync, or as of the failure: each changed name may be on disk or not;
- every synced file as it was synced. Another file has a beginning of its content, or zeros.

After a kill without a power failure the directory is as the process left it: files that the cleanup
code of a killed process deletes are restored.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from simulation.calls import may_park, park

# The share of syncs that take time, and how long at most.
_SLOW_SHARE: Final = 0.5
_LONGEST_SYNC_S: Final = 0.1
# How long a sync takes that a process is to die in.
_LONGEST_HOLD_S: Final = 5.0


@dataclass
class _Synced:
    """The durable names and contents of one directory."""

    names: dict[str, int] = field(default_factory=dict)  # inodes by name
    content: dict[int, bytes] = field(default_factory=dict)  # by inode
    inodes: set[int] = field(default_factory=set)  # whose content was synced


class Disk:
    """The directories of one process below ``root``."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = root
        self._rng = rng
        self._synced: dict[Path, _Synced] = {}
        self._image: dict[Path, dict[str, bytes]] | None = None
        self.failing = 0.0  # the probability that a sync fails
        self.full = False
        self.failed = 0
        self.is_holding = False  # whether the sync that ``hold`` named is in progress
        self._left = 0

    def sync(self, descriptor: int) -> None:
        """Make a file or a directory durable, or fail."""
        if may_park():
            self._wait()
        if self._image is not None:
            return  # the process is dead
        if self.full or (self.failing and self._rng.random() < self.failing):
            self.failed += 1
            code = errno.ENOSPC if self.full else errno.EIO
            raise OSError(code, os.strerror(code))
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            synced = self._synced.setdefault(path, _Synced())
            synced.names = {one.name: one.stat().st_ino for one in path.iterdir()}
            for one in path.iterdir():
                inode = one.stat().st_ino
                synced.content[inode] = one.read_bytes()
        else:
            synced = self._synced.setdefault(path.parent, _Synced())
            synced.content[found.st_ino] = path.read_bytes()
            synced.inodes.add(found.st_ino)

    def _wait(self) -> None:
        self._left -= 1
        if not self._left:
            self.is_holding = True
            park(_LONGEST_HOLD_S)
            self.is_holding = False
        elif self._rng.random() < _SLOW_SHARE:
            park(self._rng.uniform(0, _LONGEST_SYNC_S))

    def hold(self, number: int) -> None:
        """Let the sync of that number from now on take long, so that the process can die in it."""
        self._left = number
        self.is_holding = False

    def directories(self) -> list[Path]:
        return sorted(path for path in self.root.iterdir() if path.is_dir())

    def take_image(self, *, power_failure: bool) -> None:
        """Note what the next start finds; what happens on the disk until then has no effect."""
        self._image = {
            path: self._after_power_failure(path) if power_failure else _content(path)
            for path in self.directories()
        }

    def _after_power_failure(self, path: Path) -> dict[str, bytes]:
        synced = self._synced.get(path, _Synced())
        present = {one.name: one.stat().st_ino for one in path.iterdir()}
        content = {**synced.content}
        for one in path.iterdir():
            content.setdefault(one.stat().st_ino, one.read_bytes())
        found: dict[str, bytes] = {}
        for name in sorted({*present, *synced.names}):
            before, now = synced.names.get(name), present.get(name)
            inode = before if self._rng.random() < 0.5 else now
            if inode is None:
                continue
            whole = content[inode]
            if inode not in synced.inodes:
                whole = self._torn(whole)
            found[name] = whole
        return found

    def _torn(self, whole: bytes) -> bytes:
        length = self._rng.randint(0, len(whole))
        return whole[:length] if self._rng.random() < 0.5 else bytes(len(whole))

    def restart(self) -> None:
        """Make the directory what the image says. All of it is durable then."""
        assert self._image is not None
        for path, files in self._image.items():
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
            synced = self._synced[path] = _Synced()
            for name, data in files.items():
                (path / name).write_bytes(data)
                inode = (path / name).stat().st_ino
                synced.names[name] = inode
                synced.content[inode] = data
                synced.inodes.add(inode)
        self._image = None

    def lose(self) -> None:
        """Delete everything, as a lost machine does. No process may run."""
        for path in self.directories():
            shutil.rmtree(path)
        self._synced.clear()
        self._image = None


def _content(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir()}


@contextlib.contextmanager
def simulated(disks: list[Disk]) -> Iterator[None]:
    """Let ``os.fsync`` sync the files of these disks, which lie in memory."""
    usual = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        for disk in disks:
            if path.is_relative_to(disk.root):
                disk.sync(descriptor)
                return
        usual(descriptor)

    os.fsync = fsync
    try:
        yield
    finally:
        os.fsync = usual
