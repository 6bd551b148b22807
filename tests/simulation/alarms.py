"""Lines in the log of a broker that must not occur, whatever fails around it.

No fault of a simulation changes bytes that were synced. So no index is ever damaged, unless the
disk refused to read it, and no session fails by a bug.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

from simulation.disk import REFUSED

_ALARMS: Final = {"index.damaged": "7", "index.rebuilding": "7", "connection.failed": "6"}


class _Alarms(logging.Handler):
    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", "")
        text = record.getMessage()
        if (number := _ALARMS.get(event)) is not None and REFUSED not in text:
            error = f": {record.exc_info[1]!r}" if record.exc_info else ""
            self._found.append(f"{number}: {event}: {text}{error}")


@contextlib.contextmanager
def alarms(found: list[str]) -> Iterator[None]:
    """Add a line to ``found`` for each alarm in the ``with`` block. Show no log meanwhile."""
    logger, handler = logging.getLogger("escapement"), _Alarms(found)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
