"""A broker's data directory: its lock, its identity and its files.

The *identity* is a random id of the broker. It is created once and outlives the process, so a
restarted broker can prove that a lease is its own, and takes it back at once. The process holds the
lock while it has the directory open. The kernel releases the lock however the process ends.

    broker.id   the identity, 32 hexadecimal digits
    broker.lock locked while a broker runs here; contains its process id, for operators
    index/      the delayed index; may be deleted while no broker runs
    index-NN/   the delayed indexes of other bundles than 0
    log.sqlite3 the log, if it is not in MySQL
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import secrets
from pathlib import Path
from typing import Final

from escapement.errors import DataDirectoryInUse, StorageError

# Random for each boot of a machine, and the same in its containers.
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_IDENTITY_NAME: Final = "broker.id"
_IDENTITY = re.compile(r"[0-9a-f]{32}")


class DataDirectory:
    """A data directory that this process has locked. Use it as a context manager."""

    def __init__(self, path: Path, lock_fd: int, identity: str) -> None:
        self.path = path
        self.identity = identity
        self._lock_fd = lock_fd

    @classmethod
    def open(cls, path: Path) -> DataDirectory:
        """Lock the data directory. Create the directory and the identity if they do not exist.

        Raises:
          DataDirectoryInUse: if another process has locked the directory.
          StorageError: if the directory cannot be written, or the identity is malformed.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock_fd = os.open(path / "broker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(f"cannot use the data directory {path}: {error.strerror}") from error
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(lock_fd, 32, 0).decode("ascii", "replace").strip()
            os.close(lock_fd)
            raise DataDirectoryInUse(
                f"the data directory {path} is in use by process {holder or 'unknown'}; "
                "stop that broker or give this one a directory of its own (--data)"
            ) from None
        try:
            os.ftruncate(lock_fd, 0)
            os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
            return cls(path, lock_fd, _identity(path))
        except BaseException:
            os.close(lock_fd)
            raise

    @property
    def place(self) -> str:
        """Where the directory is: on this machine, since its last boot. A copy has another place.

        Only one process at a time has a directory with this place open.
        """
        file = os.fstat(self._lock_fd)
        return f"{_boot_id()}:{file.st_dev}:{file.st_ino}"

    @property
    def index(self) -> Path:
        """Path of the directory that contains the delayed index of bundle 0."""
        return self.index_of(0)

    def index_of(self, bundle_id: int) -> Path:
        """Return the path of the directory that contains the delayed index of a bundle."""
        return index_directory(self.path, bundle_id)

    def close(self) -> None:
        """Release the lock of the data directory."""
        os.close(self._lock_fd)

    def __enter__(self) -> DataDirectory:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def index_directory(data: Path, bundle_id: int) -> Path:
    """Return the directory of a bundle's delayed index in a data directory."""
    return data / (f"index-{bundle_id:02}" if bundle_id else "index")


def _boot_id() -> str:
    """Return what identifies this machine since its last boot; without Linux, its name."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return platform.node()


def identity_of(data: Path) -> str | None:
    """Return the identity in a data directory, which need not be locked; None if there is none.

    Raises:
      StorageError: if it is malformed.
    """
    path = data / _IDENTITY_NAME
    if not path.exists():
        return None
    text = path.read_text("ascii").strip()
    if not _IDENTITY.fullmatch(text):
        raise StorageError(f"{path} contains no valid identity; remove it to get a new one")
    return text


def _identity(data: Path) -> str:
    if found := identity_of(data):
        return found
    text, path = secrets.token_hex(16), data / _IDENTITY_NAME
    temporary = path.with_suffix(".tmp")
    with open(temporary, "w", encoding="ascii") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    return text
