"""Brokers end by themselves only for the reasons that faults explain (invariants 7 and 8)."""

from __future__ import annotations

from collections.abc import Iterator

from escapement.errors import AddressTaken, LeaseLost, StorageError, StorageUnavailable
from escapement.storage.engine.base import TransactionAborted
from histories.history import History


def ended(history: History) -> Iterator[str]:
    for end in history.ends:
        if not _is_explained(history, end.error):
            yield f"ended (7, 8): {end.host} ended at {end.at_s:.3f} s: {end.error!r}"


def _is_explained(history: History, error: BaseException) -> bool:
    if isinstance(error, LeaseLost | StorageUnavailable | TransactionAborted):
        return True
    if isinstance(error, AddressTaken):  # it has lost its directory, and with it its identity
        return True
    if type(error) is not StorageError or not history.disk_failed:
        return False
    return "cannot be written" in str(error) or "cannot be read" in str(error)
