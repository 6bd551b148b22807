"""A delayed index that a rebuild writes to a new directory, which replaces the current index.

The new directory is beside the current index. Brokers ignore it, and several processes may write
segments to it at the same time. A rename of the directory makes it the index. Until shortly before,
the current index is unchanged. The next rebuild deletes the files that a crash leaves here.

This module knows nothing of the log. The order of the steps is: write the segments, fsync them,
write the manifest (the file that names the segments), fsync it, rename the directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from shutil import rmtree
from typing import Final

from escapement.storage.directory import sync_directory
from escapement.storage.index.index import DelayedIndex
from escapement.storage.index.limits import IndexLimits
from escapement.storage.index.segments.manifest import (
    Lineage,
    Manifest,
    ManifestFile,
    Mark,
    Position,
)
from escapement.storage.index.segments.segment_set import segment_name
from escapement.storage.index.segments.writer import writing

# The new directory has the name of the index's directory with this suffix.
_SUFFIX: Final = ".rebuilding"


def building_directory(index: Path) -> Path:
    """Return the directory in which a rebuild of the index in ``index`` works."""
    return index.with_name(index.name + _SUFFIX)


class Building:
    """One index under construction. All methods block, because they access the disk."""

    def __init__(self, index: Path) -> None:
        """Create an empty directory for the new index.

        Args:
          index: the directory of the current index, which :meth:`install` replaces.

        Raises:
          StorageError: if the new directory cannot be created.
        """
        self._index = index
        self.directory = building_directory(index)
        self._last_number = 0
        rmtree(self.directory, ignore_errors=True)
        with writing(self.directory):
            self.directory.mkdir(parents=True)

    def new_segment(self) -> Path:
        """Return a path at which the caller may create the next segment file."""
        self._last_number += 1
        return self.directory / segment_name(self._last_number)

    def name(
        self,
        log_identity: str,
        positions: Mapping[int, Position],
        segments: Iterable[Path],
        base: Mark | None,
        forgotten_until_ms: int,
    ) -> None:
        """Write a manifest that names these segments as the whole index.

        Args:
          log_identity: the id of the log that the index was built from.
          positions: for each lane (a writer of the log), the position in its journal up to which
            the segments have all messages.
          segments: durable files in the new directory, under any names. They are renamed.
          base: the last checkpoint that the database named when the rebuild read from it which
            messages are pending.
          forgotten_until_ms: the segments have all messages that are due later.

        Raises:
          StorageError: if writing to the disk fails.
        """
        sizes = {}
        with writing(self.directory):
            for number, path in enumerate(segments, 1):
                named = self.directory / segment_name(number)
                path.rename(named)
                sizes[named.name] = named.stat().st_size
            sync_directory(self.directory)
            manifest = Manifest(
                log_identity,
                dict(positions),
                sizes,
                Lineage(base=base),
                forgotten_until_ms,
                relied_on=positions,
            )
            ManifestFile(self.directory).update(lambda _: manifest, lambda: None)

    def merge(self, limits: IndexLimits, wait: Callable[[Callable[[], None]], None]) -> None:
        """Merge the smallest segments until at most ``limits.max_segments`` are left.

        First deletes the files in the directory that the manifest does not name.

        Args:
          wait: called with each merge, a function that takes long; calls it and returns when it
            has ended.

        Raises:
          IndexDamaged: if a segment is damaged.
          StorageError: if writing to the disk fails.
        """
        index = DelayedIndex.open(self.directory, limits)
        while (surplus := index.segment_count - limits.max_segments) > 0:
            assert index.manifest is not None
            sizes = index.manifest.segments
            # Merge at most as many segments at once as an index may have.
            some = sorted(sizes, key=sizes.__getitem__)[: min(surplus + 1, limits.max_segments)]
            compaction = index.begin_compaction(some)
            wait(compaction.run)
            compaction.finish({})
            index.install_compaction(compaction)

    def install(self) -> None:
        """Delete the current index and put the new one in its place.

        After a crash in this method there is the current index, the new index, or none.

        Raises:
          StorageError: if the disk access fails.
        """
        with writing(self._index):
            if self._index.exists():
                DelayedIndex.discard(self._index)
                sync_directory(self._index)
                self._index.rmdir()
            self.directory.rename(self._index)
            sync_directory(self._index.parent)

    def discard(self) -> None:
        """Give up the rebuild and delete the directory of the new index."""
        rmtree(self.directory, ignore_errors=True)
