"""A directory of a local file system, which the driver and all tasks see under one name.

What was confirmed of it outlives a loss of power: whoever forgets something because it is there
relies on that. A :class:`~escapement.pipeline.shelf.Place`, like that of Spark's file systems.
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
    """Where a place is on this machine, by its URI as Spark writes it; None if it is not."""
    scheme, _, rest = uri.partition(":")
    return Path("/" + rest.lstrip("/")) if scheme == _SCHEME else None


class LocalPlace:
    """See the module's docstring; blocking. Raises ``StorageError`` for what the system refuses."""

    def __init__(self, root: str) -> None:
        """``root`` is a URI as Spark writes it."""
        found = local_path(root)
        assert found is not None
        self.root = root
        self._root = found
        self._unsettled: set[Path] = set()  # directories that have got something

    def directories(self, path: str) -> list[str]:
        """The names of those directly in a directory; none if there is no such directory."""
        with self._said(path):
            try:
                return sorted(one.name for one in os.scandir(self._root / path) if one.is_dir())
            except FileNotFoundError:
                return []

    def read(self, path: str) -> bytes | None:
        """A small file's content; None if it is not there."""
        with self._said(path):
            try:
                return (self._root / path).read_bytes()
            except FileNotFoundError:
                return None

    def write(self, path: str, content: bytes) -> None:
        """A small file, replaced if it is there. It is durable when this returns."""
        target = self._root / path
        with self._said(path):
            self._make(target.parent)
            with target.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self._unsettled.add(target.parent)
        self.settle()

    def move(self, path: str, to: str) -> None:
        """Give a file another place; durable after ``settle``."""
        target = self._root / to
        with self._said(path):
            self._make(target.parent)
            (self._root / path).rename(target)
            self._unsettled.add(target.parent)

    def settle(self) -> None:
        """Have all that was moved durable."""
        while self._unsettled:
            directory = self._unsettled.pop()
            with self._said(directory):
                sync_directory(directory)

    def delete(self, path: str) -> None:
        """A file, or a directory with all that is in it; nothing if it is not there."""
        found = self._root / path
        with self._said(path):
            if found.is_dir():
                # A task that nobody waits for may still write there: the next run finds that.
                shutil.rmtree(found, ignore_errors=True)
            else:
                found.unlink(missing_ok=True)

    def _make(self, directory: Path) -> None:
        """With all above it, which are to know of it."""
        if not directory.is_dir():
            self._make(directory.parent)
            directory.mkdir(exist_ok=True)
            self._unsettled.add(directory.parent)

    @contextmanager
    def _said(self, path: str | Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = self._root / path
            raise StorageError(f"{where}: {error.strerror or error}") from error
