"""Events that a run must show: otherwise it proves nothing about them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

# Counts that must not be zero, besides those of the kinds of troubles: otherwise the run proves
# nothing about these events.
_SHOWN: Final = (
    "published",
    "delivered again",
    "dead letters",
    "redriven",
    "cancelled",
    "rescheduled",
    "run now",
    "generations begun",
    "generations forgotten",
)
# A shorter run may end before it has shown everything. A trouble comes every ten seconds or so, and
# after 16 of them each kind has come. The first generation of the log is forgotten in the second
# minute.
MINUTES_TO_SHOW_ALL: Final = 5


def unshown(counts: Mapping[str, int], troubles: Iterable[str]) -> list[str]:
    """Return what a run should have shown, and did not.

    Args:
      counts: the counts of the history.
      troubles: the kinds of troubles that the run can cause.
    """
    return [what for what in (*_SHOWN, *troubles) if not counts.get(what)]
