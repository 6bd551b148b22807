"""Tells the brokers of a node to read namespaces, tokens and grants again after a change.

All bundles share these tables. A version in the database grows with each change. Each broker reads
in a task of its own, so a broker that hangs delays no other one.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Final

import trio

from escapement.broker.broker import Broker
from escapement.errors import LeaseLost, ShuttingDown, StorageUnavailable
from escapement.storage.engine.base import TransactionAborted

# Brokers that read at the same time. Each uses a connection, which the pool keeps. Only the broker
# of bundle 0 waits for anything but the database: for its own change of a token.
_AT_ONCE: Final = 4


class CatalogReaders:
    """The version that each broker has read, and the brokers that read now."""

    def __init__(self) -> None:
        self._versions: dict[Broker, int] = {}
        self._reading: set[Broker] = set()
        self._turns = trio.Semaphore(_AT_ONCE)

    def made(self, broker: Broker, version: int) -> None:
        """Note that a broker starts, and so reads at least this version."""
        self._versions[broker] = version

    def look(self, brokers: Collection[Broker], version: int, nursery: trio.Nursery) -> None:
        """Let those brokers read that have not read this version and do not read now.

        Args:
          brokers: all brokers that serve clients.
          version: the version that the database has.
        """
        self._versions = {one: self._versions[one] for one in brokers if one in self._versions}
        for broker in brokers:
            if self._versions.get(broker) != version and broker not in self._reading:
                self._reading.add(broker)
                nursery.start_soon(self._read, broker, version)

    async def _read(self, broker: Broker, version: int) -> None:
        try:
            # The next look tries it again. A broker that has lost its lease ends by itself.
            with suppress(StorageUnavailable, TransactionAborted, ShuttingDown, LeaseLost):
                async with self._turns:
                    await broker.refresh_catalog()
                self._versions[broker] = version
        finally:
            self._reading.discard(broker)
