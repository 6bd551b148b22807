"""All desks of one connection, and which of them handles which command."""

from __future__ import annotations

from collections.abc import Collection

from escapement.broker.access.caller import Caller
from escapement.broker.access.needs import COMMAND_NEEDS
from escapement.broker.broker import Broker
from escapement.broker.limits import BrokerLimits
from escapement.broker.session.amendments import AmendmentRequests
from escapement.broker.session.broker_requests import BrokerRequests
from escapement.broker.session.consumers import Consumers
from escapement.broker.session.outbound import Outbound
from escapement.broker.session.producers import Producers
from escapement.broker.session.reading import Reading
from escapement.broker.session.request_handler import AtOnce, RequestHandler, Waiting
from escapement.protocol.commands import Command


class Desks:
    """The desks of one connection at its broker.

    The maps ``at_once``, ``in_turn`` and ``aside`` are those of all desks together (see
    ``RequestHandler``). Their methods check the rights of the peer first. The peer understands the
    features ``understood``.
    """

    def __init__(
        self,
        broker: Broker,
        outbound: Outbound,
        limits: BrokerLimits,
        caller: Caller,
        understood: Collection[str],
    ) -> None:
        self._caller = caller
        self._producers = Producers(broker, outbound, limits, caller)
        self._consumers = Consumers(broker, outbound, caller, understood)
        self._desks: tuple[RequestHandler, ...] = (
            self._producers,
            self._consumers,
            AmendmentRequests(broker, outbound),
            Reading(broker, outbound),
            BrokerRequests(broker, outbound, caller, understood),
        )
        self.at_once: dict[type[Command], AtOnce] = {}
        self.in_turn: dict[type[Command], Waiting] = {}
        self.aside: dict[type[Command], Waiting] = {}
        for desk in self._desks:
            self.at_once |= desk.at_once
            self.in_turn |= desk.in_turn
            self.aside |= desk.aside
        for kind in [kind for kind, needs in COMMAND_NEEDS.items() if needs]:
            if kind in self.at_once:
                self.in_turn[kind] = self._checked_in_turn(self.at_once.pop(kind))
            else:
                self.aside[kind] = self._checked(self.aside[kind])

    async def room(self) -> None:
        """Wait while too many publishes have no receipt."""
        await self._producers.room()

    def wake(self) -> None:
        """Wake the consumers, because the connection has room for messages again."""
        self._consumers.wake()

    def review(self) -> None:
        """Close the producers and consumers of topics to which the peer has lost its right."""
        self._producers.review()
        self._consumers.review()

    def release(self) -> None:
        """Close everything that is open, because the connection ends."""
        for desk in self._desks:
            desk.release()

    def _checked(self, carry_out: Waiting) -> Waiting:
        """Return a function that checks the rights of the peer, and then carries a command out."""

        async def checked(command: Command) -> None:
            await self._caller.permit_command(command)
            await carry_out(command)

        return checked

    def _checked_in_turn(self, carry_out: AtOnce) -> Waiting:
        async def checked(command: Command) -> None:
            await self._caller.permit_command(command)
            carry_out(command)

        return checked
