"""The order in which the stress test kills and damages."""

from __future__ import annotations

import random
from itertools import islice

from stress.troubles import in_rounds


def test_each_round_of_troubles_has_every_kind() -> None:
    """So a run of five minutes shows all of them, with any seed."""
    others = [f"trouble {number}" for number in range(8)]
    for seed in range(50):
        coming = in_rounds("SIGKILL", others, random.Random(seed))
        for _ in range(3):
            kinds = list(islice(coming, 16))
            assert sorted(kinds) == ["SIGKILL"] * 8 + others
    assert kinds != list(islice(coming, 16)), "the order of a round is random"
