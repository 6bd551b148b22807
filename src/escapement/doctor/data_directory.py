"""Checks of the data directory: its permissions, its file system, and its free space."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from escapement.doctor.finding import Finding, error, notice, ok, warning

# File systems in memory: they are empty after the machine restarts.
_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
# File systems of other machines. Locks and fsync may not work there, and every access may hang.
_NETWORK: Final = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "ceph", "glusterfs"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "lustre"),
    }
)
# The file systems of containers themselves.
_CONTAINER: Final = frozenset({"overlay", "aufs"})

# With less free space, a busy broker fills the disk within minutes.
_FEW_BYTES: Final = 256 * 1024**2
# A merge of index segments needs as much space as the segments that it merges.
_SCARCE_BYTES: Final = 2 * 1024**3
_FEW_FILES: Final = 1000


@dataclass(frozen=True, slots=True)
class Place:
    """The properties of a data directory, or of its nearest parent if it does not exist.

    Attributes:
      exists: whether the data directory exists. The other attributes concern ``where``.
      free_files: how many files can be created, or None if the file system does not limit them.
    """

    path: Path
    where: Path
    exists: bool
    is_directory: bool
    writable: bool
    mode: int
    owned: bool
    file_system: str
    free_bytes: int
    free_files: int | None


def look_at(path: Path) -> Place:
    """Look at a data directory, or at its nearest parent if it does not exist."""
    where = path.absolute()
    while not where.exists() and where != where.parent:
        where = where.parent
    status, space = where.stat(), os.statvfs(where)
    return Place(
        path=path,
        where=where,
        exists=path.exists(),
        is_directory=where.is_dir(),
        writable=os.access(where, os.R_OK | os.W_OK | os.X_OK),
        mode=stat.S_IMODE(status.st_mode),
        owned=status.st_uid == os.geteuid(),
        file_system=_file_system(where, Path("/proc/self/mountinfo").read_text()),
        free_bytes=space.f_bavail * space.f_frsize,
        free_files=space.f_favail if space.f_files else None,
    )


def judge(place: Place, *, holds_log: bool) -> Iterator[Finding]:
    """Judge a data directory.

    Args:
      holds_log: whether the log is in it, so that messages are lost with it. Otherwise only the
        index is, which a broker rebuilds.
    """
    yield _permissions(place, holds_log)
    yield _file_system_found(place, holds_log)
    yield _space(place)


def _permissions(place: Place, holds_log: bool) -> Finding:
    check = "permissions"
    if not place.is_directory:
        return error(check, f"{place.where} is not a directory", "Choose another --data.")
    if not place.writable:
        whose = f"user {os.geteuid()} may not write to {place.where}"
        return error(check, whose, f"Run chown {os.geteuid()} {place.where}, or choose --data.")
    if not place.exists:
        return notice(check, f"{place.path} does not exist; the broker creates it")
    if place.mode & stat.S_IWOTH:
        return warning(
            check,
            f"every user of this machine may change {place.path}",
            f"Run chmod o-w {place.path}.",
        )
    if place.mode & stat.S_IROTH:
        what = "messages" if holds_log else "the index"
        return notice(
            check,
            f"every user of this machine may read {what} in {place.path}",
            f"To prevent that, run chmod o-rwx {place.path}.",
        )
    if not place.owned:
        return notice(check, f"{place.path} belongs to another user, and is writable")
    return ok(check, f"only user {os.geteuid()} may use {place.path}")


def _file_system_found(place: Place, holds_log: bool) -> Finding:
    check, kind = "file system", place.file_system
    bad = error if holds_log else warning
    if kind in _MEMORY:
        lost = "all messages are lost" if holds_log else "the index is lost and must be rebuilt"
        return bad(
            check,
            f"{place.where} is in memory ({kind}): {lost} when the machine restarts",
            "Choose a --data directory on a local disk.",
        )
    if kind in _NETWORK:
        return bad(
            check,
            f"{place.where} is on a network file system ({kind}), where locks and fsync are not"
            " reliable",
            "Choose a --data directory on a local disk.",
        )
    if kind in _CONTAINER:
        lost = "all messages are lost" if holds_log else "the index is lost and must be rebuilt"
        return warning(
            check,
            f"{place.where} is in the container itself ({kind}): {lost} with the container",
            "Mount a volume as the --data directory.",
        )
    return ok(check, f"{place.where} is on {kind}")


def _space(place: Place) -> Finding:
    check = "disk space"
    free = f"{place.free_bytes / 1024**3:.1f} GiB are free in {place.where}"
    remedy = "Free some space, or choose a --data directory on a larger disk."
    if place.free_files is not None and place.free_files < _FEW_FILES:
        few = f"only {place.free_files} more files can be created in {place.where}"
        return error(check, few, "Delete files, or choose another --data.")
    if place.free_bytes < _FEW_BYTES:
        return error(check, f"only {free}", remedy)
    if place.free_bytes < _SCARCE_BYTES:
        return warning(check, f"only {free}", remedy)
    return ok(check, free)


def _file_system(where: Path, mounts: str) -> str:
    """Return the type of the file system of a directory, from the text of ``mountinfo``."""
    target, found, found_parts = where.resolve(), "unknown", -1
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        # Spaces in a path are written as \\040, and so on.
        point = Path(left.split()[4].encode().decode("unicode_escape"))
        # Of several mounts on the same point, the last one is visible.
        if target.is_relative_to(point) and len(point.parts) >= found_parts:
            found, found_parts = right.split()[0], len(point.parts)
    return found
