"""The requests of one connection about the broker itself."""

from __future__ import annotations

from collections.abc import Collection

from escapement.broker.access.caller import Caller
from escapement.broker.admin import Admin
from escapement.broker.broker import Broker
from escapement.broker.session.outbound import Outbound
from escapement.broker.session.request_handler import RequestHandler
from escapement.names import full_name
from escapement.protocol import commands as wire
from escapement.protocol.limits import FEATURE_BUNDLES


class BrokerRequests(RequestHandler):
    """The desk for requests about the broker itself: administration, heartbeat, and owners."""

    def __init__(
        self, broker: Broker, outbound: Outbound, caller: Caller, understood: Collection[str]
    ) -> None:
        self._tells_bundles = FEATURE_BUNDLES in understood
        self._caller = caller
        self._admin = Admin(broker)
        self._directory = broker.directory
        self._outbound = outbound
        self.at_once = {wire.Ping: self._ping, wire.Lookup: self._look_up}
        self.aside = {wire.Admin: self._administer}

    def _ping(self, command: wire.Ping) -> None:
        self._outbound.send(wire.Pong(command.token))

    def _look_up(self, command: wire.Lookup) -> None:
        bundle_id = self._directory.bundle_of(full_name(command.topic))
        place = self._directory.owner_of(bundle_id)
        bundles = self._directory.count if self._tells_bundles else 1
        self._outbound.send(wire.Owner(command.request_id, bundle_id, *place, bundles))

    async def _administer(self, command: wire.Admin) -> None:
        await self._outbound.room()
        # Checks rights, so not before the wait, which lasts as long as the peer does not read.
        caller = self._caller.because(command.reason)
        result = await self._admin.carry_out(command.verb, command.arguments, caller)
        self._outbound.answer(wire.AdminReply(command.request_id, result))
