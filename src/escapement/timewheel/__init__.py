"""The hierarchical timing wheel; it depends on numpy alone."""

from escapement.timewheel.entries import Entries
from escapement.timewheel.wheel import TimingWheel

__all__ = ["Entries", "TimingWheel"]
