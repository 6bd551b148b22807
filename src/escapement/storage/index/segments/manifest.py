"""The manifest: the segments of the index, and their position in the log.

This module owns one small file that is replaced atomically (written under another name, fsynced,
renamed, the directory fsynced), so the index on disk has no intermediate states. The file is a
line with a checksum and a JSON object:

    escapement index manifest 1 <crc-32>
    {"log": ..., "mark": [life, number], "base": [life, number],
     "positions": {lane: [seq, group]}, "segments": {name: size_bytes},
     "forgotten_until_ms": ms}

It knows nothing of the content of segments. Checkpoint and compaction both change the manifest,
from threads; each change applies to the newest state, under a lock.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

from isal.isal_zlib import crc32

from escapement.errors import IndexDamaged
from escapement.storage.directory import sync_directory

Position = tuple[int, bytes]  # a sequence number in the lane, and the group id at that number
Failpoint = Callable[[str], None]  # called with the name of the step that was just done

MANIFEST_NAME: Final = "MANIFEST"
_TEMPORARY_NAME: Final = "MANIFEST.new"
_FIRST_LINE: Final = re.compile(rb"escapement index manifest 1 ([0-9a-f]{8})\n")


def no_failpoint(name: str) -> None:
    """A failpoint that never fails."""


class Mark(NamedTuple):
    """The identity of a checkpoint: the ``number``-th of one start of a broker."""

    incarnation: str  # a random id, new with each start
    number: int


class Lineage(NamedTuple):
    """The checkpoint that wrote an index, and the one the database named when its writer began.

    ``mark`` is None if the index was not written by a checkpoint. ``base`` is None if there had
    been no checkpoint.
    """

    mark: Mark | None = None
    base: Mark | None = None

    def goes_with(self, last: Mark | None) -> bool:
        """Whether the index has all that the database's state of checkpoint ``last`` expects.

        It does if the same start of the broker wrote ``last``, and not after the index; or if no
        checkpoint was written since that start.
        """
        if last == self.base:
            return True
        if last is None or self.mark is None:
            return False
        return last.incarnation == self.mark.incarnation and last.number <= self.mark.number


@dataclass(frozen=True, slots=True)
class Manifest:
    """One state of the index on disk."""

    log_identity: str
    # By lane, the position in its journal up to which the segments are complete.
    positions: Mapping[int, Position]
    segments: Mapping[str, int]  # file name, size in bytes
    lineage: Lineage
    # Messages due by this time may have been left out. The clock may have been set back since.
    forgotten_until_ms: int = 0

    def encode(self) -> bytes:
        body = json.dumps(
            {
                "log": self.log_identity,
                "mark": self.lineage.mark,
                "base": self.lineage.base,
                "positions": {str(k): [s, g.hex()] for k, (s, g) in self.positions.items()},
                "segments": dict(self.segments),
                "forgotten_until_ms": self.forgotten_until_ms,
            },
            indent=1,
        ).encode()
        return b"escapement index manifest 1 %08x\n" % crc32(body) + body

    @classmethod
    def decode(cls, data: bytes, where: str) -> Manifest:
        """Decode what ``encode`` made. Raises ``IndexDamaged`` for anything else."""
        line = _FIRST_LINE.match(data)
        if line is None or int(line[1], 16) != crc32(data[line.end() :]):
            raise IndexDamaged(f"{where}: fails its checksum, or has an unknown version")
        try:
            fields = json.loads(data[line.end() :])
            positions = {
                int(lane): (int(seq), bytes.fromhex(group))
                for lane, (seq, group) in fields["positions"].items()
            }
            segments = {str(name): int(size) for name, size in fields["segments"].items()}
            # Earlier versions wrote neither, and their databases named no checkpoint.
            lineage = Lineage(_mark(fields.get("mark")), _mark(fields.get("base")))
            until_ms = int(fields.get("forgotten_until_ms", 0))
            return cls(str(fields["log"]), positions, segments, lineage, until_ms)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IndexDamaged(f"{where}: {error!r}") from error


def _mark(field: Any) -> Mark | None:
    if field is None:
        return None
    incarnation, number = field
    return Mark(str(incarnation), int(number))


class ManifestFile:
    """The manifest of a directory: its current state and its replacement."""

    def __init__(self, directory: Path, failpoint: Failpoint) -> None:
        """Read the manifest; blocking. ``current`` is None if the directory has none.

        Raises:
          IndexDamaged: if the file is damaged.
        """
        self._path = directory / MANIFEST_NAME
        self._failpoint = failpoint
        self._lock = Lock()
        self.current: Manifest | None = None
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise IndexDamaged(f"{self._path}: {error.strerror}") from error
        self.current = Manifest.decode(data, str(self._path))

    def update(
        self, change: Callable[[Manifest | None], Manifest], on_rename: Callable[[], None]
    ) -> None:
        """Replace the manifest by the result of ``change`` for the newest state; blocking.

        Args:
          on_rename: called when the new manifest is on disk under another name. After that, an
            error leaves open which of the two manifests counts.

        Raises:
          OSError: if the disk refuses.
        """
        with self._lock:
            manifest = change(self.current)
            temporary = self._path.with_name(_TEMPORARY_NAME)
            try:
                with temporary.open("wb") as file:
                    file.write(manifest.encode())
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
            self._failpoint("manifest tmp written")
            on_rename()
            temporary.rename(self._path)
            self._failpoint("manifest renamed")
            sync_directory(self._path.parent)
            self.current = manifest
