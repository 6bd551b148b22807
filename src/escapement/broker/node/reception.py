"""Where a node sends its clients: to one of its own brokers, or to another node.

A session belongs to a broker, so a node without bundles has no sessions. It answers Hello with
``Moved`` from memory: the owner of the bundle that the client wants. If Hello names no bundle, the
answers name the other live nodes in turn. So the client soon finds a broker, although the directory
still has nodes that have just died.

A node whose leases have expired is *cut off*: it cannot reach the database, and another node may
have its bundles. It would never learn that, and its clients would wait for it. So it sends them to
other nodes, as at a hand-over, until it has renewed its leases. Without another live node, its
clients stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import trio

from escapement.broker.broker import Broker
from escapement.broker.directory import Place, check_log, wanted_bundle
from escapement.broker.node.node_directory import NodeDirectory
from escapement.event_log import EventLog
from escapement.protocol import commands as wire

_log = EventLog(__name__)


class Reception:
    """Chooses who serves the clients of a node.

    Args:
      address: the address of the node for clients.
      brokers: returns the brokers of the node that serve clients, by the ids of their bundles.

    Attributes:
      log_identity: the id of the log. Set it before the first client comes.
    """

    def __init__(
        self, directory: NodeDirectory, address: str, brokers: Callable[[], Sequence[Broker]]
    ) -> None:
        self.log_identity = b""
        self._directory = directory
        self._address = address
        self._brokers = brokers
        self._turns = count()

    def choose(self, features: Mapping[str, Any]) -> Broker | wire.Moved:
        """Return the broker that serves a new connection, or where the client finds it.

        Args:
          features: the features of the client's Hello, which may name a bundle.

        Raises:
          OtherDatabase: if the client has used another database before.
        """
        check_log(features, self.log_identity)
        wanted = wanted_bundle(features)
        if not self._directory.is_cut_off:
            for broker in self._brokers():
                if wanted is None or wanted == broker.bundle_id:
                    return broker
        turn = next(self._turns)
        bundle_id = self._directory.elsewhere(turn) if wanted is None else wanted
        place = self._directory.owner_of(bundle_id, turn)
        if place.address == self._address:  # its broker starts or stops here
            place = Place("", place.epoch)
        return wire.Moved(0, bundle_id, *place)

    async def watch(
        self, left_ms: Callable[[], int], send_away: Callable[[Broker], None], every_s: float
    ) -> None:
        """Send clients away while the node is cut off, until cancelled.

        Args:
          left_ms: returns how long the leases of the node are still valid; 0 if they have expired.
          send_away: ends the connections of a broker.
          every_s: how often to look at expired leases. They must have expired at two looks, because
            a process that was suspended renews them as soon as it goes on.
        """
        directory, expired = self._directory, False
        while True:
            await trio.sleep(max(left_ms() / 1000, every_s))
            before, expired = expired, left_ms() == 0
            was_cut_off = directory.is_cut_off
            directory.is_cut_off = before and expired and directory.has_others
            brokers = self._brokers()
            if directory.is_cut_off and not was_cut_off and brokers:
                _log.warning(
                    "node.cut_off",
                    "the leases of this node have expired: sending its clients to other nodes",
                )
                for broker in brokers:
                    send_away(broker)
