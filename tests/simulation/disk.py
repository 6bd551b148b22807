"""The disk of a process: its calls fail, and a power failure loses bytes that were not synced.

The code under test writes real files, into memory, by the functions in ``files.py``. Before each
call, they ask the disk. The disk may let the call take time, or refuse it, as ``Faults`` says. A
write may store a part only: then the next write fails, or the process dies between the two.

The disk notes which bytes and names are durable: the content of each synced file, and the names of
each synced directory. After a power failure the directory has

- every name as of the last sync, or as of the failure: each changed name may be on disk or not;
- every synced file as it was synced. Another file has a beginning of its content, or zeros.

After a kill without a power failure the directory is as the process left it: files that the cleanup
code of a killed process deletes are restored.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import random
import shutil
import stat
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from simulation.calls import may_park, park

# The share of calls that take time: of those that change the disk, and of all others.
_SLOW_CHANGES: Final = 0.5
_SLOW_READS: Final = 0.1
# The share of writes that store a part first: of those that fail, and of those in slow calls.
_TORN_SHARE: Final = 0.5
_SHORT_SHARE: Final = 0.3
# How long a call takes that a process is to die in.
_LONGEST_HOLD_S: Final = 5.0

# The end of the text of each error that a disk raises.
REFUSED: Final = "says the simulated disk"


class Kind(enum.Enum):
    """A kind of file call, with the errors that it may raise."""

    OPEN = "open", errno.EIO, errno.EMFILE
    READ = "read", errno.EIO
    LIST = "list", errno.EIO, errno.EMFILE
    CREATE = "create", errno.EIO, errno.EMFILE, errno.ENOSPC
    WRITE = "write", errno.EIO, errno.ENOSPC
    SYNC = "sync", errno.EIO, errno.ENOSPC
    RENAME = "rename", errno.EIO, errno.ENOSPC
    DELETE = "delete", errno.EIO
    MAKE_DIRECTORY = "make directory", errno.EIO, errno.ENOSPC

    def __init__(self, text: str, *codes: int) -> None:
        self.text = text
        self.codes = codes

    @property
    def changes(self) -> bool:
        """Whether such a call changes what a power failure leaves."""
        return self not in (Kind.OPEN, Kind.READ, Kind.LIST)


# The kinds of calls that change what a power failure leaves.
CHANGES: Final = [kind for kind in Kind if kind.changes]
# All errors of calls.
CODES: Final = sorted({code for kind in Kind for code in kind.codes})


@dataclass(frozen=True)
class Faults:
    """The probability that a call fails, the error, and the longest time that a call takes.

    Calls of other kinds than ``kinds`` do not fail, nor those that may not raise the error.
    """

    failing: float = 0.0
    code: int = errno.EIO
    kinds: Collection[Kind] = frozenset(Kind)
    longest_s: float = 0.1


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
        self.faults = Faults()
        self.failed: Counter[str] = Counter()  # the calls that failed, by kind and error
        self.is_holding = False  # whether the call that ``hold`` named is in progress
        self._left = 0
        self._fails_then = False
        self._held: Collection[Kind] = ()
        self._works = False  # whether the disk itself accesses the files

    # -- calls of the process --------------------------------------------------------

    def has(self, path: str) -> bool:
        """Return whether a path is in an index of this disk, and a process accesses it."""
        return path.startswith(f"{self.root}/index") and not self._works

    def call(self, kind: Kind) -> None:
        """Let a call of the process wait, or fail."""
        if may_park():
            self._wait(kind)
        if self._image is None and self._is_to_fail(kind):
            self.fail(kind)

    def _is_to_fail(self, kind: Kind) -> bool:
        code = self.faults.code
        if self._fails_then and kind.changes:
            self._left -= 1
            self._fails_then = self._left > 0
            if not self._left:
                return True
        failing = self.faults.failing
        if not failing or code not in kind.codes or kind not in self.faults.kinds:
            return False
        return self._rng.random() < failing

    def fail(self, kind: Kind) -> None:
        """Raise the error of the faults, or EIO if a call of this kind may not raise it."""
        code = self.faults.code if self.faults.code in kind.codes else errno.EIO
        self.failed[f"{kind.text} {errno.errorcode[code]}"] += 1
        raise OSError(code, f"{os.strerror(code)}, {REFUSED}")

    def _wait(self, kind: Kind) -> None:
        if kind in self._held and not self._fails_then:
            self._left -= 1
            if not self._left:
                self.is_holding = True
                park(_LONGEST_HOLD_S)
                self.is_holding = False
                return
        if self._rng.random() < (_SLOW_CHANGES if kind.changes else _SLOW_READS):
            park(self._rng.uniform(0, self.faults.longest_s))

    def hold(self, number: int, kinds: Collection[Kind]) -> None:
        """Let a call of some kinds take long, so that the process can die in it.

        Args:
          number: which one of these calls from now on.
        """
        self._left, self._fails_then, self._held = number, False, kinds
        self.is_holding = False

    def break_at(self, number: int) -> None:
        """Let one change fail, with the error of the faults: the one of that number from now on."""
        self._left, self._fails_then = number, True

    def heal(self) -> None:
        """Let no call fail any more."""
        self.faults = Faults()
        self._left, self._fails_then = 0, False

    def begin_write(self, size: int) -> tuple[int, bool]:
        """Return how many bytes of a write are stored, and whether the write is torn.

        The next write of a file fails after a torn one, and goes on after a short one.
        """
        if may_park():
            self._wait(Kind.WRITE)
        torn = self._image is None and self._is_to_fail(Kind.WRITE)
        if torn and (size < 2 or self._rng.random() >= _TORN_SHARE):
            self.fail(Kind.WRITE)
        short = size > 1 and may_park() and self._rng.random() < _SHORT_SHARE
        return (self._rng.randint(1, size - 1) if torn or short else size), torn

    def sync(self, descriptor: int, path: Path) -> None:
        """Make a file or a directory durable, or fail."""
        self.call(Kind.SYNC)
        if self._image is not None:
            return  # the process is dead
        with self._working():
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

    # -- the end of the process ------------------------------------------------------

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Let no call in the ``with`` block fail or wait."""
        self._works, usual = True, self._works
        try:
            yield
        finally:
            self._works = usual

    def directories(self) -> list[Path]:
        return sorted(path for path in self.root.iterdir() if path.is_dir())

    def take_image(self, *, power_failure: bool) -> None:
        """Note what the next start finds; what happens on the disk until then has no effect."""
        with self._working():
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
        with self._working():
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
        with self._working():
            for path in self.directories():
                shutil.rmtree(path)
        self._synced.clear()
        self._image = None


def _content(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir()}
