"""Stored bytes with the damage that a disk may do."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

from hypothesis import strategies as st


def scramble(index: Path) -> None:
    """Overwrite the bytes of each segment."""
    for path in index.glob("*.segment"):
        with suppress(FileNotFoundError), path.open("r+b") as file:
            file.write(b"\x5a" * path.stat().st_size)


def flip_a_bit(index: Path, chance: random.Random) -> None:
    """Change one bit of each segment, at random."""
    for path in index.glob("*.segment"):
        with suppress(FileNotFoundError), path.open("r+b") as file:
            if not (size := path.stat().st_size):
                continue  # the broker is still writing it
            at = chance.randrange(size)
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))


@st.composite
def damaged(draw: st.DrawFn, written: bytes, least: int = 0) -> bytes:
    """Draw bytes with one byte changed, a missing end, or one byte more.

    Args:
      least: the shortest length of the result.
    """
    what = draw(st.sampled_from(["changed", "missing", "more"]))
    if what == "changed":
        found = bytearray(written)
        found[draw(st.integers(0, len(written) - 1))] ^= draw(st.integers(1, 255))
        return bytes(found)
    if what == "missing":
        return written[: draw(st.integers(least, len(written) - 1))]
    return written + draw(st.binary(min_size=1, max_size=1))
