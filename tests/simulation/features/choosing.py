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
    Limiting,
    Claiming,
    Pushing,
    Transacting,
    Guarding,
)
# Features of one run, beside bursts. A run with all of them would take far longer. The four seeds
# of `make test` have all of them.
_SEVERAL: Final = 4


def features_of(seed: int, bundles: int) -> list[type[Feature]]:
    """Return the features of a run. Seeds that follow each other use all features in turn.

    Args:
      bundles: their number. Several bundles have bursts, too.
    """
    some = _features_of(seed)
    return [*some, Bursting] if bundles > 1 else some


def needs_application(seed: int) -> bool:
    """Return whether a run has an application with a database on a real server."""
    return Transacting in _features_of(seed)


def _features_of(seed: int) -> list[type[Feature]]:
    several = min(_SEVERAL, len(FEATURES))
    return [FEATURES[(seed * _SEVERAL + n) % len(FEATURES)] for n in range(several)]
