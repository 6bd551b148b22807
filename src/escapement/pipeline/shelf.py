"""How verified files come into an archive, so that each step may be the last before a crash.

A run of the job ``archive`` writes into a directory of its own. What is verified there

1. is named in a note in that directory: which files are about to be where;
2. is moved into its places, and a manifest of each topic is written beside;
3. is recorded in the database, topic by topic. From then on it counts: the log may forget these
   messages, and readers know of the files.

Then the directory goes. Whoever comes next and finds one deletes what its note names and no
record does, and then it. A root may be that of several logs: each looks at its own directories.
Both kinds of names begin with an underscore, so that Spark's readers pass them by.

Does not know Spark: a :class:`Place` is what it needs of a file system.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple, Protocol

from escapement.errors import NotFound
from escapement.pipeline.archivemanifest import Manifest
from escapement.storage import archive
from escapement.storage.archive import ArchiveRecord
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.offsets import OffsetSet
from escapement.storage.schema import log_identity

_RUNS: Final = "_runs"
_MANIFESTS: Final = "_manifests"
_NOTE: Final = "moving.json"


class Place(Protocol):
    """A directory; pipeline/localplace.py says what each of these does."""

    root: str

    def directories(self, path: str) -> list[str]: ...

    def read(self, path: str) -> bytes | None: ...

    def write(self, path: str, content: bytes) -> None: ...

    def move(self, path: str, to: str) -> None: ...

    def settle(self) -> None: ...

    def delete(self, path: str) -> None: ...


class Ready(NamedTuple):
    """Verified files of one topic, in the directory of their run, and which messages they have.

    Their paths in the manifest are those that they are to have.
    """

    manifest: Manifest
    offsets: OffsetSet
    names: tuple[str, ...]  # of the manifest's files, in that directory

    @property
    def manifest_path(self) -> str:
        """Where the manifest is to be."""
        return f"{_MANIFESTS}/{self.manifest.run}-{self.manifest.topic_id}.json"


class Shelf:
    """The archive of one log at one place; see the module's docstring. Blocking."""

    def __init__(self, place: Place, engine: Engine, connection: Connection) -> None:
        """Over the connection that holds ``archive.alone``."""
        self._place = place
        self._engine = engine
        self._connection = connection
        self.root = place.root
        self.log = log_identity(connection).hex()

    def begin(self, run: str) -> str:
        """The whole path of the directory that a run may write to."""
        return f"{self.root}/{self._directory(run)}"

    def put(self, run: str, ready: list[Ready]) -> None:
        """Bring what is in the run's directory into its places."""
        # With the connection the right to be at work here would be gone.
        self._connection.execute("SELECT 1")
        directory = self._directory(run)
        files = {
            one.manifest.topic_id: [one.manifest_path, *(file.path for file in one.manifest.files)]
            for one in ready
        }
        note = json.dumps({"run": run, "files": files}).encode()
        self._place.write(f"{directory}/{_NOTE}", note)
        for one in ready:
            for file, name in zip(one.manifest.files, one.names, strict=True):
                self._place.move(f"{directory}/{name}", file.path)
            self._place.write(one.manifest_path, one.manifest.encode())
        self._place.settle()

    def record(self, one: Ready) -> bool:
        """From now on it counts; False if its topic was deleted, and all of it with it."""
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
            archive.record(self._engine, self._connection, row, one.offsets)
        except NotFound:
            return False
        return True

    def clear(self) -> None:
        """Delete what runs on this log have left that does not count."""
        for name in self._place.directories(_RUNS):
            if not name.startswith(self.log):
                continue
            note = self._place.read(f"{_RUNS}/{name}/{_NOTE}")
            if note is not None:
                moving = json.loads(note)
                for topic_id, paths in moving["files"].items():
                    if not archive.is_recorded(self._connection, int(topic_id), moving["run"]):
                        for path in paths:
                            self._place.delete(path)
            self._place.delete(f"{_RUNS}/{name}")

    def _directory(self, run: str) -> str:
        return f"{_RUNS}/{self.log}-{run}"
