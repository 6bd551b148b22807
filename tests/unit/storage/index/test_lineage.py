"""Which states of a database an index on a disk goes with."""

from __future__ import annotations

import random

from escapement.storage.index import Lineage, Manifest, Mark

MINE, OTHER = Mark("mine", 3), Mark("other", 3)


def test_an_index_goes_with_its_own_checkpoint_and_those_before_it() -> None:
    """P5: the manifest is written first, and the database may be away for some of them."""
    lineage = Lineage(Mark("mine", 3), OTHER)
    assert lineage.goes_with(Mark("mine", 3))
    assert lineage.goes_with(Mark("mine", 1))
    assert not lineage.goes_with(Mark("mine", 4))  # an older copy of the directory


def test_an_index_goes_with_the_state_that_its_writer_began_with() -> None:
    """P5: nobody else has written a checkpoint since."""
    assert Lineage(MINE, OTHER).goes_with(OTHER)
    assert not Lineage(MINE, OTHER).goes_with(Mark("other", 4))
    assert not Lineage(MINE, OTHER).goes_with(Mark("third", 1))
    assert not Lineage(MINE, OTHER).goes_with(None)
    assert Lineage(MINE, None).goes_with(None)
    assert Lineage(None, OTHER).goes_with(OTHER)  # rebuilt by a job
    assert not Lineage(None, None).goes_with(OTHER)


def test_a_manifest_keeps_its_lineage() -> None:
    for lineage in (Lineage(), Lineage(MINE), Lineage(None, OTHER), Lineage(MINE, OTHER)):
        manifest = Manifest("log", {0: (1, b"g")}, {}, lineage)
        assert Manifest.decode(manifest.encode(), "here") == manifest


def test_of_random_owners_only_an_index_that_has_all_fills_is_taken() -> None:
    """Invariant 7: lives end between the manifest and the database, on one disk or another."""
    taken = 0
    for seed in range(300):
        rng = random.Random(seed)
        last: Mark | None = None
        filled = 0  # what the database says is filled in, and so is in no journal
        disks: dict[str, tuple[Lineage, int]] = {}  # what the index on each has
        for life in range(30):
            disk, base = rng.choice("abc"), last
            held = disks.get(disk)
            if held is not None and held[0].goes_with(last):
                assert held[1] >= filled, f"seed {seed}"
                taken += 1
                has = filled  # it goes on from what the database says
            else:
                has = filled  # built again from the log
            for number in range(1, rng.randrange(4)):
                has += rng.randrange(3)
                mark = Mark(f"{life}", number)
                disks[disk] = Lineage(mark, base), has
                if rng.random() < 0.6:
                    last, filled = mark, has
    assert taken > 1000
