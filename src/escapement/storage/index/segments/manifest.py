"""The manifest: a file that names the segments of the index, and their position in the journal.

The journal in the database has a sequence of entries for each *lane* (a writer of the log). The
manifest says up to which entry of each lane the segments have all messages. It also says on which
later entries it relies: the segments lack messages that were finished by then. The file is replaced
atomically (written under another name, fsynced, renamed, the directory fsynced), so the index on
disk has no intermediate states. It is a line with a checksum and a JSON object:

    escapement index manifest 1 <crc-32>
    {"log": ..., "mark": [incarnation, number], "base": [incarnation, number],
     "positions": {lane: [seq, group]}, "segments": {name: size_bytes},
     "relied_on": {lane: [seq, group]}, "forgotten_until_ms": ms}

A *mark* names a checkpoint. The manifest has the mark of the checkpoint that wrote the index. Its
*base* is the last checkpoint that the database named when the broker that wrote the index started.
Mark and base tell whether the index fits the database.

This module knows nothing of the content of segments. Checkpoints and compactions change the
manifest, in several threads; each change applies to the newest state, under a lock.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

from isal.isal_zlib import crc32

from escapement.errors import IndexDamaged
from escapement.failpoints import failpoint
from escapement.storage.directory import sync_directory
from escapement.storage.index.segments.read_failure import read_failure

# A position in the journal of a lane: the sequence number of an entry, and the random id of the
# group commit that wrote it.
Position = tuple[int, bytes]

MANIFEST_NAME: Final = "MANIFEST"
_TEMPORARY_NAME: Final = "MANIFEST.new"
_FIRST_LINE: Final = re.compile(rb"escapement index manifest 1 ([0-9a-f]{8})\n")


class Mark(NamedTuple):
    """The identity of a checkpoint: the ``number``-th since a broker started."""

    incarnation: str  # a random id of that start of the broker
    number: int


class Lineage(NamedTuple):
    """The origin of an index: the checkpoint that wrote it, and an older one.

    ``mark`` is the checkpoint that wrote the index, or None if a rebuild wrote it. ``base`` is the
    last checkpoint that the database named when the broker or rebuild that wrote the index started,
    or None if there had been no checkpoint.
    """

    mark: Mark | None = None
    base: Mark | None = None

    def goes_with(self, last: Mark | None) -> bool:
        """Return whether an index of this lineage may be used with the state in the database.

        It may if it has all messages that the state relies on. So ``last`` must be the checkpoint
        that wrote the index, an earlier one of the same start of the broker, or ``base``.

        Args:
          last: the last checkpoint that the database names, or None if it names none.
        """
        if last == self.base:
            return True
        if last is None or self.mark is None:
            return False
        return last.incarnation == self.mark.incarnation and last.number <= self.mark.number


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a manifest: one state of the index on disk."""

    log_identity: str
    # For each lane, the position in its journal up to which the segments have all messages.
    positions: Mapping[int, Position]
    segments: Mapping[str, int]  # the size in bytes of each segment, by file name
    lineage: Lineage
    # Messages due by this time may be missing because they were finished. The time may lie in the
    # future, if the wall clock was set back.
    forgotten_until_ms: int = 0
    # For each lane, the position in its journal up to which acknowledgements, cancellations and
    # changed due times may be the reason why a message is missing. A database without this entry
    # was restored to an earlier state, in which the message may still be pending.
    relied_on: Mapping[int, Position] = field(default_factory=dict)

    def encode(self) -> bytes:
        body = json.dumps(
            {
                "log": self.log_identity,
                "mark": self.lineage.mark,
                "base": self.lineage.base,
                "positions": _plain(self.positions),
                "segments": dict(self.segments),
                "relied_on": _plain(self.relied_on),
                "forgotten_until_ms": self.forgotten_until_ms,
            },
            indent=1,
        ).encode()
        return b"escapement index manifest 1 %08x\n" % crc32(body) + body

    @classmethod
    def decode(cls, data: bytes, where: str) -> Manifest:
        """Decode the content of a manifest file.

        Args:
          where: names the file in error messages.

        Raises:
          IndexDamaged: if the content is damaged, or from an unknown version.
        """
        line = _FIRST_LINE.match(data)
        if line is None or int(line[1], 16) != crc32(data[line.end() :]):
            raise IndexDamaged(f"{where}: fails its checksum, or has an unknown version")
        try:
            fields = json.loads(data[line.end() :])
            positions, relied_on = (
                {int(n): (int(seq), bytes.fromhex(group)) for n, (seq, group) in field.items()}
                for field in (fields["positions"], fields["relied_on"])
            )
            segments = {str(name): int(size) for name, size in fields["segments"].items()}
            lineage = Lineage(_mark(fields["mark"]), _mark(fields["base"]))
            until_ms = int(fields["forgotten_until_ms"])
            return cls(str(fields["log"]), positions, segments, lineage, until_ms, relied_on)
        except (ArithmeticError, AttributeError, LookupError, RecursionError) as error:
            raise IndexDamaged(f"{where}: {error!r}") from error
        except (TypeError, ValueError) as error:
            raise IndexDamaged(f"{where}: {error!r}") from error


def latest(some: Mapping[int, Position], others: Mapping[int, Position]) -> dict[int, Position]:
    """Return the later one of two positions for each lane."""
    return {n: max(one[n] for one in (some, others) if n in one) for n in {*some, *others}}


def _plain(positions: Mapping[int, Position]) -> dict[str, tuple[int, str]]:
    return {str(lane): (seq, group.hex()) for lane, (seq, group) in positions.items()}


def _mark(field: Any) -> Mark | None:
    if field is None:
        return None
    incarnation, number = field
    return Mark(str(incarnation), int(number))


class ManifestFile:
    """The manifest in the directory of an index: reads it once and replaces it."""

    def __init__(self, directory: Path) -> None:
        """Read the manifest into ``current``; blocking.

        ``current`` is None if the directory has no manifest.

        Raises:
          IndexDamaged: if the manifest is damaged or cannot be read.
          StorageError: if a limit of the process prevents opening it.
        """
        self._path = directory / MANIFEST_NAME
        self._lock = Lock()
        self.current: Manifest | None = None
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise read_failure(self._path, error) from error
        self.current = Manifest.decode(data, str(self._path))

    def update(
        self, change: Callable[[Manifest | None], Manifest], on_rename: Callable[[], None]
    ) -> None:
        """Replace the manifest on disk; blocking.

        Args:
          change: called with the current manifest; returns the new one.
          on_rename: called when the new manifest is on disk under a temporary name, just before it
            is renamed. If an error occurs after that, either manifest may be the one on disk.

        Raises:
          OSError: if writing to the disk fails.
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
            failpoint("before_manifest_swap")
            on_rename()
            temporary.rename(self._path)
            failpoint("after_manifest_swap")
            sync_directory(self._path.parent)
            self.current = manifest
