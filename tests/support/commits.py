"""The source of an earlier commit, to run it beside the working tree."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]


@contextmanager
def source_of(commit: str) -> Iterator[Path]:
    """Check out ``commit`` in a folder that exists in the ``with`` block; yield its source."""
    with tempfile.TemporaryDirectory(prefix="escapement-commit-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(_ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree / "src"
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
