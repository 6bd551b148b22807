"""The hierarchical timing wheel. It depends on numpy alone; begin with ``wheel.py``."""

from escapement.timewheel.entries import Entries
from escapement.timewheel.wheel import TimingWheel

__all__ = ["Entries", "TimingWheel"]
