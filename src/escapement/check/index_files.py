"""Checks of the files of the index: manifest, segments, blocks, and files that nothing names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from escapement.check.problem import Problem, problem
from escapement.doctor.finding import Finding, notice, ok
from escapement.errors import IndexDamaged
from escapement.pipeline.auditing.finding import Kind
from escapement.pipeline.auditing.index_count import IndexCount
from escapement.storage import lease
from escapement.storage.data_directory import index_directory
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.index.building import building_directory
from escapement.storage.index.segments.manifest import MANIFEST_NAME, ManifestFile


def check_segments(data: Path, tell: Callable[[str], None], bundle_id: int = 0) -> list[Finding]:
    """Read each block of the index of a bundle, and report each that is damaged.

    Args:
      tell: called with a text about the progress.
    """
    directory = index_directory(data, bundle_id)
    if not (directory / MANIFEST_NAME).exists():
        which = f"{data} has no index" if not bundle_id else f"there is no index {directory}"
        return [notice(Kind.INDEX_FILES, f"{which}; a broker builds it from the log")]
    try:
        index = IndexCount.open(data, bundle_id)
    except IndexDamaged as damage:
        return [problem(Kind.INDEX_FILES, str(damage))]
    found = [problem(Kind.INDEX_FILES, text) for text in dict.fromkeys(index.check(tell))]
    return found or [ok(Kind.INDEX_FILES, f"{index.segment_count} segments are intact")]


def of_former_owner(
    finding: Finding, engine: Engine, connection: Connection, bundle_id: int, identity: str | None
) -> Finding:
    """Return a finding of a stale index, as a notice if another node has taken the bundle since.

    That node has an index of its own, and this one is not used.

    Args:
      identity: the identity of the broker of the data directory; None if it is unknown.
    """
    row = lease.look(engine, connection, bundle_id)
    if identity and row is not None and row.owner_id not in ("", identity):
        return notice(
            Kind.STALE_INDEX,
            f"the index is from before node {row.owner_name} took the bundle; it is not used",
        )
    return finding


def orphaned_files(data: Path, bundle_id: int = 0) -> list[Path]:
    """Return the files of a bundle's index that its manifest does not name. No broker may run.

    If the manifest is damaged, no file is orphaned: a repair deletes all of them.
    """
    index = index_directory(data, bundle_id)
    found = [building_directory(index)] if building_directory(index).exists() else []
    if not index.is_dir():
        return found
    try:
        manifest = ManifestFile(index).current
    except IndexDamaged:
        return found
    named = {MANIFEST_NAME, *(manifest.segments if manifest is not None else ())}
    return found + sorted(path for path in index.iterdir() if path.name not in named)


def orphan(path: Path) -> Finding:
    """Return the finding of an orphaned file."""
    return notice(
        Problem.FILES,
        f"{path} was left behind by a crash; nothing names it",
        "The next start of the broker deletes it, or the next escapement pipeline rebuild.",
    )
