"""The root directory of an archive, on any file system that Spark supports; used by the driver.

Paths are relative to the directory and have no escape sequences. Python itself accesses a local
directory. Any other directory is accessed through Spark's Java. Java also determines whether a
directory is local: a path without a scheme is on Spark's default file system, local or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from escapement.errors import InvalidRequest, StorageError
from escapement.pipeline.archiving.archive_folder import RootDirectory
from escapement.pipeline.directories.local_directory import LocalDirectory, local_path

# Characters that make Spark's readers treat a path as a pattern.
_PATTERN: Final = frozenset("[]{}")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def root_directory(spark: SparkSession, root: str) -> RootDirectory:
    """Return the directory ``root``. Raises ``InvalidRequest`` if Spark cannot access it."""
    found = SparkDirectory(spark, root)
    return found if local_path(found.root) is None else LocalDirectory(found.root)


class SparkDirectory:
    """A directory accessed through Spark's Java; implements ``RootDirectory``; blocking."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        if set(root) & _PATTERN:
            raise InvalidRequest(
                f"Spark treats {root} as a pattern: give a path without the characters []{{}}"
            )
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is None:
            raise InvalidRequest(
                "archiving does not work over Spark Connect: use a session with its own JVM"
            )
        self._path = jvm.org.apache.hadoop.fs.Path
        session: Any = spark
        try:
            path = self._path(root)
            self._fs = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
            self.root: str = self._fs.makeQualified(path).toString().rstrip("/")
        except Exception as error:  # py4j raises exceptions of many kinds
            raise InvalidRequest(f"Spark cannot write to {root}: {_reason(error)}") from None

    def at(self, path: str) -> str:
        """Return the full URI of a path in this directory."""
        return f"{self.root}/{path}"

    def directories(self, path: str) -> list[str]:
        """Return the names of a directory's direct subdirectories; empty if it does not exist."""
        where = self._path(self.at(path))
        if not self._fs.exists(where):
            return []
        found = self._fs.listStatus(where)
        return sorted(one.getPath().getName() for one in found if one.isDirectory())

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file, or None if it does not exist."""
        where = self._path(self.at(path))
        if not self._fs.exists(where):
            return None
        stream = self._fs.open(where)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def write(self, path: str, content: bytes) -> None:
        """Write a small file, and replace an existing one."""
        stream = self._fs.create(self._path(self.at(path)), True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def move(self, path: str, to: str) -> None:
        """Move a file.

        Raises:
          StorageError: if the file cannot be moved.
        """
        target = self._path(self.at(to))
        self._fs.mkdirs(target.getParent())
        if not self._fs.rename(self._path(self.at(path)), target):
            raise StorageError(f"{self.at(path)} cannot be moved to {self.at(to)}")

    def settle(self) -> None:
        """Do nothing: these file systems are trusted to confirm only durable changes."""

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with its content. Does nothing if it does not exist."""
        self._fs.delete(self._path(self.at(path)), True)


def _reason(error: Exception) -> str:
    """Return Java's error message without its stack trace."""
    said = getattr(error, "java_exception", None)
    return str(error if said is None else said.toString()).partition("\n")[0]
