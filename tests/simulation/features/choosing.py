"""All features, and those of a run."""

from __future__ import annotations

from typing import Final

from simulation.features.bulk import Bulk
from simulation.features.bursting import Bursting
from simulation.features.claiming import Claiming
from simulation.features.delaying import Delaying
from simulation.features.deleting import Deleting
from simulation.features.expiring import Expiring
from simulation.features.feature import Feature
from simulation.features.grouping import Grouping
from simulation.features.guarding import Guarding
from simulation.features.limiting import Limiting
from simulation.features.posting import Posting
from simulation.features.pushing import Pushing
from simulation.features.quotas import Quotas
from simulation.features.redriving import Redriving
from simulation.features.replacing import Replacing
from simulation.features.scheduling import Scheduling
from simulation.features.seeking import Seeking
from simulation.features.transacting import Transacting

# Each four that follow each other have one that takes long.
FEATURES: Final[tuple[type[Feature], ...]] = (
    *(Replacing, Redriving, Expiring, Guarding),
    *(Grouping, Seeking, Scheduling, Transacting),
    *(Bulk, Deleting, Posting, Pushing),
    *(Quotas, Delaying, Limiting, Claiming),
)
# Features of one run, beside bursts. A run with all of them would take far longer.
_SEVERAL: Final = 4
_ROUND: Final = len(FEATURES) // _SEVERAL


def features_of(seed: int, bundles: int) -> list[type[Feature]]:
    """Return the features of a run.

    The seeds of a round, such as 4 to 7, have all features. The next round has others together.

    Args:
      bundles: their number. Several bundles have bursts, too.
    """
    some = _features_of(seed)
    return [*some, Bursting] if bundles > 1 else some


def needs_application(seed: int) -> bool:
    """Return whether a run has an application with a database on a real server."""
    return Transacting in _features_of(seed)


def _features_of(seed: int) -> list[type[Feature]]:
    first = seed * _SEVERAL + seed // _ROUND
    return [FEATURES[(first + n) % len(FEATURES)] for n in range(_SEVERAL)]
