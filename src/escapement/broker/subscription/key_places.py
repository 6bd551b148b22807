"""Places of keys in a key table, and the layout of the table in which they are valid."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.message import Int64s

Places = npt.NDArray[np.intp]
NO_PLACE: Final = -1


class Placed(NamedTuple):
    """Places, and the table layout in which they are valid; ``NO_PLACE`` for no key."""

    layout: int
    places: Places

    def pick(self, which: slice | Int64s) -> Placed:
        """Return some of the places."""
        return Placed(self.layout, self.places[which])
