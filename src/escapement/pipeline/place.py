"""A directory on any file system that Spark knows, seen from the driver.

Paths are relative to it, and are taken as they are: nothing in them is an escape. What is local
needs no Java to be reached, but Java says what is: a path without a scheme is so only where
Spark's own file system is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from escapement.errors import InvalidRequest, StorageError
from escapement.pipeline.localplace import LocalPlace, local_path
from escapement.pipeline.shelf import Place

# Characters by which a reader of Spark's may take a path for one that matches others.
_PATTERN: Final = frozenset("[]{}")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def place(spark: SparkSession, root: str) -> Place:
    """Where ``root`` is. Raises ``InvalidRequest`` where Spark does not know it, or not find it."""
    found = SparkPlace(spark, root)
    return found if local_path(found.root) is None else LocalPlace(found.root)


class SparkPlace:
    """See the module's docstring; blocking."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        if set(root) & _PATTERN:
            raise InvalidRequest(f"Spark takes {root} for a pattern: a path without any of []{{}}")
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is None:
            raise InvalidRequest("archiving needs a session with a JVM of its own, not Connect")
        self._path = jvm.org.apache.hadoop.fs.Path
        session: Any = spark
        try:
            path = self._path(root)
            self._fs = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
            self.root: str = self._fs.makeQualified(path).toString().rstrip("/")
        except Exception as error:  # of the bridge to Java: whatever it does not know
            raise InvalidRequest(f"Spark cannot write to {root}: {_reason(error)}") from None

    def at(self, path: str) -> str:
        """The whole path."""
        return f"{self.root}/{path}"

    def directories(self, path: str) -> list[str]:
        """The names of those directly in a directory; none if there is no such directory."""
        where = self._path(self.at(path))
        if not self._fs.exists(where):
            return []
        found = self._fs.listStatus(where)
        return sorted(one.getPath().getName() for one in found if one.isDirectory())

    def read(self, path: str) -> bytes | None:
        """A small file's content; None if it is not there."""
        where = self._path(self.at(path))
        if not self._fs.exists(where):
            return None
        stream = self._fs.open(where)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def write(self, path: str, content: bytes) -> None:
        """A small file, replaced if it is there."""
        stream = self._fs.create(self._path(self.at(path)), True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def move(self, path: str, to: str) -> None:
        """Give a file another place.

        Raises:
          StorageError: if that cannot be done.
        """
        target = self._path(self.at(to))
        self._fs.mkdirs(target.getParent())
        if not self._fs.rename(self._path(self.at(path)), target):
            raise StorageError(f"{self.at(path)} cannot be moved to {self.at(to)}")

    def settle(self) -> None:
        """What these file systems have confirmed counts as durable."""

    def delete(self, path: str) -> None:
        """A file, or a directory with all that is in it; nothing if it is not there."""
        self._fs.delete(self._path(self.at(path)), True)


def _reason(error: Exception) -> str:
    """What Java said, without the list of calls that it came through."""
    said = getattr(error, "java_exception", None)
    return str(error if said is None else said.toString()).partition("\n")[0]
