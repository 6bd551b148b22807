"""An index under construction in a directory beside the current one, which it replaces at the end.

Brokers do not look at this directory, and several processes may write segments to it at the same
time. One step makes them the index; until then the current index is unchanged. The next build
deletes whatever a crash leaves here.

This module knows nothing of the log. The order is: segments, fsync, manifest, fsync, rename.
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
    no_failpoint,
)
from escapement.storage.index.segments.segment_set import segment_name
from escapement.storage.index.segments.writer import writing

# Added to the name of the index's directory.
_SUFFIX: Final = ".rebuilding"


class Building:
    """One index under construction; blocking."""

    def __init__(self, index: Path) -> None:
        """``index`` is the directory to replace.

        Raises:
          StorageError: if a directory beside it cannot be made.
        """
        self._index = index
        self.directory = index.with_name(index.name + _SUFFIX)
        self._last_number = 0
        rmtree(self.directory, ignore_errors=True)
        with writing(self.directory):
            self.directory.mkdir(parents=True)

    def new_segment(self) -> Path:
        """Return the path of the next segment, which does not exist yet."""
        self._last_number += 1
        return self.directory / segment_name(self._last_number)

    def name(
        self,
        log_identity: str,
        positions: Mapping[int, Position],
        segments: Iterable[Path],
        base: Mark | None,
    ) -> None:
        """Write a manifest that names these durable segments as the whole index.

        The files may have any names in the directory.

        Args:
          base: the checkpoint of the database state from which pending messages were determined.

        Raises:
          StorageError: if the disk refuses.
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
        """Merge the smallest segments until no more are left than a broker keeps to.

        Deletes files that the manifest does not name.

        Args:
          wait: calls its argument, which takes long.

        Raises:
          IndexDamaged: if a segment is damaged.
          StorageError: if the disk refuses.
        """
        index = DelayedIndex.open(self.directory, limits)
        while (surplus := index.segment_count - limits.max_segments) > 0:
            assert index.manifest is not None
            sizes = index.manifest.segments
            # Merge no more at once than readers may have open.
            some = sorted(sizes, key=sizes.__getitem__)[: min(surplus + 1, limits.max_segments)]
            compaction = index.begin_compaction(some)
            wait(compaction.run)
            compaction.finish()
            index.install_compaction(compaction)

    def take_place(self) -> None:
        """Become the index. A crash leaves no index or the new one. Raises ``StorageError``."""
        with writing(self._index):
            if self._index.exists():
                DelayedIndex.discard(self._index)
                sync_directory(self._index)
                self._index.rmdir()
            self.directory.rename(self._index)
            sync_directory(self._index.parent)

    def discard(self) -> None:
        """Give up and delete the directory."""
        rmtree(self.directory, ignore_errors=True)
