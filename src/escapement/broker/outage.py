"""Outages of the database, as background tasks meet them.

A task that cannot work now tries again later. It warns once for each outage, which may be long.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final

from escapement.errors import Busy, ShuttingDown, StorageUnavailable
from escapement.storage.engine.base import TransactionAborted

_log = logging.getLogger(__name__)

# After these errors the same work may succeed later.
PASSING: Final = (StorageUnavailable, TransactionAborted, Busy, ShuttingDown)


class Outage(AbstractContextManager[None]):
    """A context for the work of one task, which ends the work when the database fails.

    Args:
      effect: what the outage means, for the warning.
    """

    def __init__(self, effect: str) -> None:
        self._effect = effect
        self.goes_on = False  # the last work failed

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, PASSING):
            self.goes_on = False
            return False
        _log.log(logging.DEBUG if self.goes_on else logging.WARNING, "%s: %s", self._effect, error)
        self.goes_on = True
        return True
