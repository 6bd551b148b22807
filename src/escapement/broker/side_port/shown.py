"""The brokers that the side port shows, and the requests that use them.

A process runs a broker for each bundle that it owns. Bundles come and go while the side port goes
on. Before a broker closes its database connections and files, ``_end`` cancels the requests that
use it, and waits until their calls in threads have returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from escapement.broker.broker import Broker
from escapement.broker.membership import Membership
from escapement.errors import Busy, InvalidRequest, ShuttingDown, WrongBundle
from escapement.names import TopicName


class Shown:
    """The brokers of the process that have started, and the number of their connections.

    Attributes:
      membership: the membership of a process that has started, and may own bundles. It need not
        own one. None before.
      connections: returns the number of connections of a broker.
    """

    def __init__(self) -> None:
        self.membership: Membership | None = None
        self.connections: Callable[[Broker], int] = lambda broker: 0
        self._brokers: dict[int, Broker] = {}  # by bundle
        self._uses: dict[trio.CancelScope, Broker] = {}
        self._use_ended = trio.lowlevel.ParkingLot()  # brokers whose last requests still run

    @property
    def brokers(self) -> list[Broker]:
        """The brokers, by the ids of their bundles."""
        return [broker for _, broker in sorted(self._brokers.items())]

    def show(self, broker: Broker) -> None:
        """Show a broker that has just started, until it ends."""
        self._brokers[broker.bundle_id] = broker
        broker.on_end(lambda: self._end(broker))

    async def _end(self, broker: Broker) -> None:
        """Stop showing a broker, and end all requests that use it."""
        del self._brokers[broker.bundle_id]
        for scope, used in self._uses.items():
            if used is broker:
                scope.cancel()
        while broker in self._uses.values():
            await self._use_ended.park()

    def broker_of(self, bundle_id: int | None) -> Broker | None:
        """Return the broker of a bundle; None if this process does not own it."""
        return None if bundle_id is None else self._brokers.get(bundle_id)

    def broker_for(self, arguments: dict[str, Any]) -> Broker:
        """Return the broker that carries out a verb with these arguments.

        That is the broker of the topic, if the arguments name one; otherwise the one of the lowest
        bundle.

        Raises:
          Busy: if no broker has started, or the process owns no bundle.
          WrongBundle: if the topic belongs to a bundle that this process does not own.
        """
        brokers = self.brokers
        if not brokers:
            raise self._busy()
        directory = brokers[0].directory
        try:
            topic = TopicName.parse(arguments.get("topic", "")).full
        except InvalidRequest:
            return brokers[0]
        if directory.count == 1:
            return brokers[0]
        bundle_id = directory.bundle_of(topic)
        found = self._brokers.get(bundle_id)
        if found is None:
            raise WrongBundle(
                f"The topic {topic} belongs to bundle {bundle_id}. Ask the broker at"
                f" {directory.owner_of(bundle_id).address or 'another address'}.",
                bundle_id,
            )
        return found

    def brokers_of_all(self) -> list[Broker]:
        """Return the brokers of all bundles of the database.

        Raises:
          Busy: if no broker has started, or the process owns no bundle.
          WrongBundle: if another process owns some of the bundles.
        """
        brokers = self.brokers
        if not brokers:
            raise self._busy()
        directory = brokers[0].directory
        missing = [b for b in range(directory.count) if b not in self._brokers]
        if missing:
            raise WrongBundle(
                f"This request is about all bundles, and this process does not own bundle"
                f" {missing[0]}. Use the command line or a client, which ask all brokers.",
                missing[0],
            )
        return brokers

    def _busy(self) -> Busy:
        """Return the error of a request that no broker of this process can answer."""
        if self.membership is None:
            return Busy("the broker has not started yet")
        return Busy("this node owns no bundle, so it answers no request; ask another node")

    @contextmanager
    def use(self, broker: Broker) -> Iterator[Broker]:
        """Use a broker in a ``with`` block, which is cancelled if the broker ends.

        Raises:
          ShuttingDown: if the broker ended.
        """
        with trio.CancelScope() as scope:
            self._uses[scope] = broker
            try:
                yield broker
            finally:
                del self._uses[scope]
                self._use_ended.unpark_all()
        if scope.cancelled_caught:
            raise ShuttingDown("the broker is stopping")

    async def freshen_census(self, within_s: float) -> None:
        """Wait up to ``within_s`` for new censuses, unless it is too early for them."""
        async with trio.open_nursery() as nursery:
            for broker in self.brokers:
                nursery.start_soon(broker.services.census.fresh, within_s)
