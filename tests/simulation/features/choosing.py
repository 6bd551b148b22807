"""All features, and those of a run."""

from __future__ import annotations

from typing import Final

from simulation.features.bulk import Bulk
from simulation.features.delaying import Delaying
from simulation.features.deleting import Deleting
from simulation.features.expiring import Expiring
from simulation.features.feature import Feature
from simulation.features.grouping import Grouping
from simulation.features.guarding import Guarding
from simulation.features.posting import Posting
from simulation.features.quotas import Quotas
from simulation.features.redriving import Redriving
from simulation.features.replacing import Replacing
from simulation.features.scheduling import Scheduling
from simulation.features.seeking import Seeking

FEATURES: Final[tuple[type[Feature], ...]] = (
    Replacing,
    Redriving,
    Expiring,
    Grouping,
    Seeking,
    Scheduling,
    Bulk,
    Deleting,
    Posting,
    Quotas,
    Delaying,
    Guarding,
)
# Features of one run. A run with all of them would take twice as long. The three seeds of
# `make test` have all of them.
_SEVERAL: Final = 4


def features_of(seed: int) -> list[type[Feature]]:
    """Return the features of a run. Seeds that follow each other use all features in turn."""
    several = min(_SEVERAL, len(FEATURES))
    return [FEATURES[(seed * _SEVERAL + n) % len(FEATURES)] for n in range(several)]
