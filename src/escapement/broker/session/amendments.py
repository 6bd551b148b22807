"""The requests of one connection to cancel and reschedule messages."""

from __future__ import annotations

import numpy as np

from escapement.broker.broker import Broker
from escapement.broker.publishing.outcome import Outcome
from escapement.broker.session.outbound import Outbound
from escapement.broker.session.request_handler import RequestHandler
from escapement.errors import LeaseLost
from escapement.protocol import commands as wire
from escapement.protocol.amend_status import AmendStatus


class AmendmentRequests(RequestHandler):
    """The desk for cancelling and rescheduling messages."""

    def __init__(self, broker: Broker, outbound: Outbound) -> None:
        self._broker = broker
        self._outbound = outbound
        self.aside = {wire.Cancel: self._cancel, wire.Reschedule: self._reschedule}

    async def _cancel(self, command: wire.Cancel) -> None:
        self._broker.check_open()
        await self._broker.services.amending.cancel(
            command.topic,
            command.offsets,
            lambda outcome: self._answer(command.request_id, outcome),
        )

    async def _reschedule(self, command: wire.Reschedule) -> None:
        self._broker.check_open()
        outcome = await self._broker.services.rescheduling.reschedule(
            command.topic,
            command.offsets,
            command.delay_ms,
            command.at_ms,
            spread_ms=command.spread_ms,
        )
        self._answer(command.request_id, outcome)

    def _answer(self, request_id: int, outcome: Outcome) -> None:
        if not np.any(outcome.statuses == AmendStatus.DONE):
            # Nothing was changed, so no commit has checked the lease.
            try:
                self._broker.check_lease()
            except LeaseLost as error:
                self._outbound.send(wire.Refused.because(error, request_id=request_id))
                return
        handed = {name: np.packbits(mask).tobytes() for name, mask in outcome.handed.items()}
        self._outbound.send(wire.Amended(request_id, outcome.statuses, handed))
