"""Handles outages of the database in background tasks.

A task that cannot work because of an outage tries again later. It logs one warning for each outage,
however often it tries. It may log the end of the outage too.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final

from escapement.errors import Busy, ShuttingDown, StorageUnavailable
from escapement.event_log import EventLog, FieldValue
from escapement.storage.engine.base import TransactionAborted

_log = EventLog(__name__)

# Errors after which the same work may succeed later.
PASSING: Final = (StorageUnavailable, TransactionAborted, Busy, ShuttingDown)


class Outage(AbstractContextManager[None]):
    """A context manager for the attempts of one task.

    It logs and suppresses errors after which a later attempt may succeed (``PASSING``).

    Args:
      event: the name of the log event.
      fields: the fields of the log event.
      effect: the consequence of the outage, with which the warning begins.
      end_event: the name of the event of the end.
      end: what to log when an attempt succeeds again; nothing if "".
    """

    def __init__(
        self,
        event: str,
        effect: str,
        end_event: str = "",
        end: str = "",
        /,
        **fields: FieldValue,
    ) -> None:
        self._event = event
        self._effect = effect
        self._end_event = end_event
        self._end = end
        self._fields = fields
        self.goes_on = False  # whether the last attempt failed

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, PASSING):
            if self.goes_on and error is None and self._end:
                _log.info(self._end_event, self._end, **self._fields)
            self.goes_on = False
            return False
        level = logging.DEBUG if self.goes_on else logging.WARNING
        _log.log(level, self._event, "%s: %s", self._effect, error, **self._fields)
        self.goes_on = True
        return True
