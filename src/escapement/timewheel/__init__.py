"""The hierarchical timing wheel, which returns entries when they are due.

It depends on numpy alone. Begin with ``wheel.py``.
"""

from escapement.timewheel.entries import Entries
from escapement.timewheel.wheel import TimingWheel

__all__ = ["Entries", "TimingWheel"]
