"""The states of a database that an index on a disk matches."""

from __future__ import annotations

import random

from escapement.storage.index import Lineage, Manifest, Mark

MINE, OTHER = Mark("mine", 3), Mark("other", 3)


def test_index_matches_its_own_and_earlier_checkpoints() -> None:
    """P5: the manifest is written first, and the database may miss some checkpoints."""
    lineage = Lineage(Mark("mine", 3), OTHER)
    assert lineage.goes_with(Mark("mine", 3))
    assert lineage.goes_with(Mark("mine", 1))
    assert not lineage.goes_with(Mark("mine", 4))  # an older copy of the directory


def test_index_matches_the_state_that_its_writer_started_from() -> None:
    """P5: no other broker has written a checkpoint since."""
    assert Lineage(MINE, OTHER).goes_with(OTHER)
    assert not Lineage(MINE, OTHER).goes_with(Mark("other", 4))
    assert not Lineage(MINE, OTHER).goes_with(Mark("third", 1))
    assert not Lineage(MINE, OTHER).goes_with(None)
    assert Lineage(MINE, None).goes_with(None)
    assert Lineage(None, OTHER).goes_with(OTHER)  # rebuilt by a job
    assert not Lineage(None, None).goes_with(OTHER)


def test_manifest_stores_its_lineage_and_positions() -> None:
    for lineage in (Lineage(), Lineage(MINE), Lineage(None, OTHER), Lineage(MINE, OTHER)):
        relied_on = {0: (2, b"h"), 1: (9, b"i")}
        manifest = Manifest("log", {0: (1, b"g")}, {}, lineage, relied_on=relied_on)
        assert Manifest.decode(manifest.encode(), "here") == manifest


def test_only_an_index_with_all_fills_is_used_after_random_owner_changes() -> None:
    """Invariant 7: brokers on several disks stop between writing manifest and database."""
    taken = 0
    for seed in range(300):
        rng = random.Random(seed)
        last: Mark | None = None
        filled = 0  # the fills that the database has recorded, which are in no journal
        disks: dict[str, tuple[Lineage, int]] = {}  # the fills that the index on each disk has
        for owner in range(30):
            disk, base = rng.choice("abc"), last
            held = disks.get(disk)
            if held is not None and held[0].goes_with(last):
                assert held[1] >= filled, f"seed {seed}"
                taken += 1
                has = filled  # it continues from the recorded fills
            else:
                has = filled  # rebuilt from the log
            for number in range(1, rng.randrange(4)):
                has += rng.randrange(3)
                mark = Mark(f"{owner}", number)
                disks[disk] = Lineage(mark, base), has
                if rng.random() < 0.6:
                    last, filled = mark, has
    assert taken > 1000
