"""Direct files: their bytes, and failures of writes."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from escapement.storage.index.segments.direct_file import DirectFile, read_direct


@pytest.mark.parametrize(
    "sizes", [[], [1], [4096], [4095, 2], [9 << 20], [3 << 20, 7, 2 << 20, 4096]]
)
def test_a_direct_file_has_the_bytes_in_order(tmp_path: Path, sizes: list[int]) -> None:
    """P5: for sizes of whole blocks and others."""
    rng = np.random.default_rng(len(sizes))
    pieces = [rng.bytes(size) for size in sizes]
    file = DirectFile(tmp_path / "new")
    file.writelines(pieces)
    file.flush()
    file.close()
    file.close()
    assert (tmp_path / "new").read_bytes() == b"".join(pieces)
    assert read_direct(tmp_path / "new") == b"".join(pieces)
    with pytest.raises(FileExistsError):
        DirectFile(tmp_path / "new")


@pytest.mark.parametrize("size_bytes", [5 << 20, 40 << 20])
def test_failed_write_of_a_direct_file_is_raised_by_flush_at_the_latest(
    tmp_path: Path, size_bytes: int
) -> None:
    """P5: also the failure of a piece that is written while the next is gathered."""
    file, piece = DirectFile(tmp_path / "new"), bytes(1 << 20)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write_all() -> None:
        for _ in range(size_bytes // len(piece)):
            file.write(piece)
        file.flush()

    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_all()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        file.close()
