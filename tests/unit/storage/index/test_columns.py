"""One batch assembled from many columns, compared with plain lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.message import Blobs, Int64s, MessageBatch
from escapement.storage.index.columns import FixedColumns, Pick, assemble

WIDTHS = st.sampled_from(["one", "narrow", "wide", "any"])


def strings(rng: np.random.Generator, height: int, widths: str) -> list[bytes]:
    """Return ``height`` byte strings whose lengths suit ``widths``."""
    low, high = {"one": (9, 10), "narrow": (0, 33), "wide": (0, 200), "any": (0, 1500)}[widths]
    return [rng.bytes(int(length)) for length in rng.integers(low, high, height)]


def order_of_rows(rng: np.random.Generator, heights: list[int], scattered: str) -> Int64s:
    """Return the row for each position; the rows are in sources of these heights."""
    order = np.arange(sum(heights))
    if scattered == "all":
        rng.shuffle(order)
    elif scattered == "half":
        rng.shuffle(order[: len(order) // 2])
    elif scattered == "within every second":
        for part in np.split(order, np.cumsum(heights)[:-1])[1::2]:
            rng.shuffle(part)
    return order


@settings(deadline=None)
@given(
    heights=st.lists(st.integers(1, 400), min_size=1, max_size=4),
    payloads=WIDTHS,
    keys=st.one_of(st.none(), WIDTHS),
    scattered=st.sampled_from(["none", "all", "half", "within every second"]),
    seed=st.integers(0, 1 << 32),
)
def test_every_row_is_copied_to_its_position(
    heights: list[int], payloads: str, keys: str | None, scattered: str, seed: int
) -> None:
    """Strings have one length or many, are at the ends of columns too, and may have no keys."""
    rng = np.random.default_rng(seed)
    wanted: list[tuple[bytes, bytes, int]] = []
    sources = []
    for number, height in enumerate(heights):
        own = strings(rng, height, payloads)
        named = strings(rng, height, keys) if keys is not None and number % 2 == 0 else None
        priorities = rng.integers(0, 256, height).astype(np.uint8)
        batch = MessageBatch(
            Blobs.of(own), None if named is None else Blobs.of(named), None, priorities
        )
        sources.append(FixedColumns.of(batch))
        wanted += zip(own, named or [b""] * height, priorities.tolist(), strict=True)
    total = sum(heights)
    order = order_of_rows(rng, heights, scattered)
    position_of = np.argsort(order)
    picks, first = [], 0
    for height, columns in zip(heights, sources, strict=True):
        positions = np.sort(position_of[first : first + height])
        picks.append(Pick(positions, columns, order[positions] - first))
        first += height
    made = assemble(total, picks)
    found_keys = [b""] * total if made.keys is None else made.keys.to_list()
    assert made.priorities is not None
    found = list(zip(made.payloads.to_list(), found_keys, made.priorities.tolist(), strict=True))
    assert found == [wanted[row] for row in order.tolist()]


@pytest.mark.parametrize("length", [0, 1, 31])
def test_strings_at_the_end_of_a_column_are_complete(length: int) -> None:
    """These strings are shorter than the widest one, and no bytes follow them."""
    kept = [b"x" * 32, *[b"" for _ in range(200)], *[b"%d" % n for n in range(200)], b"y" * length]
    alone = [b"z"]
    sources = [FixedColumns.of(MessageBatch(Blobs.of(rows))) for rows in (kept, alone)]
    positions = np.arange(len(kept))[::-1].copy()
    picks = [
        Pick(positions, sources[0], np.arange(len(kept))),
        Pick(np.array([len(kept)]), sources[1], np.array([0])),
    ]
    made = assemble(len(kept) + 1, picks)
    assert made.payloads.to_list() == [*reversed(kept), *alone]
