"""The archive folder: moves verified files into an archive, safe against a crash at any moment.

The job ``archive`` works in steps. Here a *run* is one of these steps, by its unique name. A run
writes files into a directory of its own below the root of the archive. After their verification:

1. A note in the run's directory lists the final paths of the files.
2. The files are moved to these paths, and a manifest for each topic is written.
3. The database *records* the files, topic by topic. A recorded file is part of the archive: the log
   may forget its messages, and readers use the file.
4. The run's directory is deleted.

The next run deletes directories that a crash has left. Before that, it deletes the files that the
note in such a directory lists and no record names. Several logs may share a root: each log handles
only its own directories. The names of the folders for runs and manifests begin with an underscore,
so that Spark's readers ignore them.

This module does not use Spark: a :class:`RootDirectory` is the interface to a file system.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple, Protocol

from escapement.errors import NotFound
from escapement.pipeline.archive_manifest import Manifest
from escapement.storage import archive_record
from escapement.storage.archive_record import ArchiveRecord
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.offsets import OffsetSet
from escapement.storage.schema import log_identity

_RUNS: Final = "_runs"
_MANIFESTS: Final = "_manifests"
_NOTE: Final = "moving.json"


class RootDirectory(Protocol):
    """The root directory of an archive, and operations on paths relative to it.

    The implementations document the methods: ``LocalDirectory``
    (pipeline/directories/local_directory.py) and ``SparkDirectory``
    (pipeline/archiving/spark_directory.py).
    """

    root: str

    def directories(self, path: str) -> list[str]: ...

    def read(self, path: str) -> bytes | None: ...

    def write(self, path: str, content: bytes) -> None: ...

    def move(self, path: str, to: str) -> None: ...

    def settle(self) -> None: ...

    def delete(self, path: str) -> None: ...


class Ready(NamedTuple):
    """The verified files of one topic, which are still in the directory of their run."""

    manifest: Manifest  # lists the files, with the paths to which they will be moved
    offsets: OffsetSet  # the offsets of all messages in the files
    names: tuple[str, ...]  # the names of the manifest's files in the run's directory

    @property
    def manifest_path(self) -> str:
        """The path, relative to the archive's root, to which the manifest is written."""
        return f"{_MANIFESTS}/{self.manifest.run}-{self.manifest.topic_id}.json"


class ArchiveFolder:
    """The archive of one log below one root directory; blocking."""

    def __init__(
        self, root_directory: RootDirectory, engine: Engine, connection: Connection
    ) -> None:
        """``connection`` must hold the lock on the log that ``archive_record.alone`` takes."""
        self._root_directory = root_directory
        self._engine = engine
        self._connection = connection
        self.root = root_directory.root
        self.log = log_identity(connection).hex()

    def begin(self, run: str) -> str:
        """Return the full path of the directory into which a run writes. Does not create it."""
        return f"{self.root}/{self._directory(run)}"

    def put(self, run: str, ready: list[Ready]) -> None:
        """Move files from the run's directory to their final paths, and write the manifests."""
        # Check that the connection is alive. If the connection is lost, so is the lock, and another
        # run may be active.
        self._connection.execute("SELECT 1")
        directory = self._directory(run)
        files = {
            one.manifest.topic_id: [one.manifest_path, *(file.path for file in one.manifest.files)]
            for one in ready
        }
        note = json.dumps({"run": run, "files": files}).encode()
        self._root_directory.write(f"{directory}/{_NOTE}", note)
        for one in ready:
            for file, name in zip(one.manifest.files, one.names, strict=True):
                self._root_directory.move(f"{directory}/{name}", file.path)
            self._root_directory.write(one.manifest_path, one.manifest.encode())
        self._root_directory.settle()

    def record(self, one: Ready) -> bool:
        """Record one topic's files in the database. Return False if the topic was deleted."""
        manifest = one.manifest
        row = ArchiveRecord(
            manifest.topic_id,
            manifest.run,
            manifest.archived_at_ms,
            manifest.messages,
            manifest.size_bytes,
            manifest.first_offset,
            manifest.last_offset,
            manifest.encode(),
        )
        try:
            archive_record.record(self._engine, self._connection, row, one.offsets)
        except NotFound:
            return False
        return True

    def clear(self) -> None:
        """Delete the directories of all runs on this log, and the moved files without a record."""
        for name in self._root_directory.directories(_RUNS):
            if not name.startswith(self.log):
                continue
            note = self._root_directory.read(f"{_RUNS}/{name}/{_NOTE}")
            if note is not None:
                moving = json.loads(note)
                for topic_id, paths in moving["files"].items():
                    if not archive_record.is_recorded(
                        self._connection, int(topic_id), moving["run"]
                    ):
                        for path in paths:
                            self._root_directory.delete(path)
            self._root_directory.delete(f"{_RUNS}/{name}")

    def _directory(self, run: str) -> str:
        return f"{_RUNS}/{self.log}-{run}"
