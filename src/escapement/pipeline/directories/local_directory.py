"""A directory of a local or mounted file system, as the root directory of an archive.

:class:`LocalDirectory` implements ``RootDirectory`` (pipeline/archiving/archive_folder.py). Written
and moved files survive a loss of power, because the log forgets messages when an archive has them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from escapement.errors import StorageError
from escapement.storage.directory import sync_directory

_SCHEME: Final = "file"


def local_path(uri: str) -> Path | None:
    """Return the path of a URI in Spark's notation (``file:/path``), or None if it is not local."""
    scheme, _, rest = uri.partition(":")
    return Path("/" + rest.lstrip("/")) if scheme == _SCHEME else None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into a ``StorageError`` that names the path."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error


class LocalDirectory:
    """A local ``RootDirectory``; blocking. Methods raise ``StorageError`` on I/O errors."""

    def __init__(self, root: str) -> None:
        """``root`` is a local URI in Spark's notation (``file:/path``)."""
        found = local_path(root)
        assert found is not None
        self.root = root
        self._root = found
        self._unsettled: set[Path] = set()  # directories with new entries that are not synced

    def directories(self, path: str) -> list[str]:
        """Return the names of a directory's direct subdirectories; empty if it does not exist."""
        with naming(self._root / path):
            try:
                return sorted(one.name for one in os.scandir(self._root / path) if one.is_dir())
            except FileNotFoundError:
                return []

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file, or None if it does not exist."""
        with naming(self._root / path):
            try:
                return (self._root / path).read_bytes()
            except FileNotFoundError:
                return None

    def write(self, path: str, content: bytes) -> None:
        """Write a small file, and replace an existing one. The file is durable on return."""
        target = self._root / path
        with naming(target):
            self._make(target.parent)
            with target.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self._unsettled.add(target.parent)
        self.settle()

    def move(self, path: str, to: str) -> None:
        """Move a file. The move is durable after ``settle``."""
        target = self._root / to
        with naming(self._root / path):
            self._make(target.parent)
            (self._root / path).rename(target)
            self._unsettled.add(target.parent)

    def settle(self) -> None:
        """Make all moves durable."""
        while self._unsettled:
            directory = self._unsettled.pop()
            with naming(directory):
                sync_directory(directory)

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with its content. Does nothing if it does not exist."""
        found = self._root / path
        with naming(found):
            if found.is_dir():
                # An abandoned task may still write there. The next run deletes the rest.
                shutil.rmtree(found, ignore_errors=True)
            else:
                found.unlink(missing_ok=True)

    def _make(self, directory: Path) -> None:
        """Create a directory and its missing parents, which ``settle`` will make durable."""
        if not directory.is_dir():
            self._make(directory.parent)
            directory.mkdir(exist_ok=True)
            self._unsettled.add(directory.parent)
