"""An index in the making: beside the one in use, and in its place when it is whole.

Owns a directory that no broker looks at, in which anybody may write segments, also several
processes; and the one step by which they become the index. Until then nothing has changed; what
a crash leaves is deleted by who builds next.

Knows nothing of the log. The order is: segments, fsync, manifest, fsync, rename.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from shutil import rmtree
from typing import Final

from escapement.storage.directory import sync_directory
from escapement.storage.index.index import DelayedIndex
from escapement.storage.index.limits import IndexLimits
from escapement.storage.index.manifest import (
    Lineage,
    Manifest,
    ManifestFile,
    Mark,
    Position,
    no_failpoint,
)
from escapement.storage.index.segments import segment_name
from escapement.storage.index.writer import SegmentWriter, writing

# Added to the name of the index's directory.
_SUFFIX: Final = ".rebuilding"


class Building:
    """One index in the making; blocking."""

    def __init__(self, index: Path) -> None:
        """``index``: the directory whose place it is to take.

        Raises:
          StorageError: if there cannot be one beside it.
        """
        self._index = index
        self.directory = index.with_name(index.name + _SUFFIX)
        self._last_number = 0
        rmtree(self.directory, ignore_errors=True)
        with writing(self.directory):
            self.directory.mkdir(parents=True)

    def new_segment(self) -> SegmentWriter:
        """Where the next segment is to be written. Raises ``StorageError``."""
        self._last_number += 1
        path = self.directory / segment_name(self._last_number)
        with writing(path):
            return SegmentWriter(path, bulk=True)

    def name(
        self,
        log_identity: str,
        positions: Mapping[int, Position],
        segments: Iterable[Path],
        base: Mark | None,
    ) -> None:
        """Let a manifest name these segments, which are on disk: they are all there is.

        They may have been written under any names in the directory.

        Args:
          base: which checkpoint the state was of that says what is pending.

        Raises:
          StorageError: the disk refuses.
        """
        sizes = {}
        with writing(self.directory):
            for number, path in enumerate(segments, 1):
                named = self.directory / segment_name(number)
                path.rename(named)
                sizes[named.name] = named.stat().st_size
            sync_directory(self.directory)
            manifest = Manifest(log_identity, dict(positions), sizes, Lineage(base=base))
            ManifestFile(self.directory, no_failpoint).update(lambda _: manifest, lambda: None)

    def merge(self, limits: IndexLimits, wait: Callable[[Callable[[], None]], None]) -> None:
        """Merge the smallest until there are no more segments than a broker keeps to.

        Whatever the manifest does not name is deleted.

        Args:
          wait: does what it is given, which takes long.

        Raises:
          IndexDamaged: a segment is not whole.
          StorageError: the disk refuses.
        """
        index = DelayedIndex.open(self.directory, limits)
        while (surplus := index.segment_count - limits.max_segments) > 0:
            assert index.manifest is not None
            sizes = index.manifest.segments
            # No more at once than readers are meant to have open.
            some = sorted(sizes, key=sizes.__getitem__)[: min(surplus + 1, limits.max_segments)]
            compaction = index.begin_compaction(some)
            wait(compaction.run)
            compaction.finish()
            index.install_compaction(compaction)

    def take_place(self) -> None:
        """Be the index. Interrupted, there is none, or the new one. Raises ``StorageError``."""
        with writing(self._index):
            if self._index.exists():
                DelayedIndex.discard(self._index)
                sync_directory(self._index)
                self._index.rmdir()
            self.directory.rename(self._index)
            sync_directory(self._index.parent)

    def discard(self) -> None:
        """Give it up."""
        rmtree(self.directory, ignore_errors=True)
