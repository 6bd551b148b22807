"""The requests of one connection to read topics by offset, and to find dedup keys."""

from __future__ import annotations

from escapement.broker.broker import Broker
from escapement.broker.session.outbound import Outbound
from escapement.broker.session.request_handler import RequestHandler
from escapement.names import TopicName
from escapement.protocol import commands as wire


class Reading(RequestHandler):
    """The desk for reading. It has nothing open."""

    def __init__(self, broker: Broker, outbound: Outbound) -> None:
        self._broker = broker
        self._outbound = outbound
        self.at_once = {wire.Find: self._find}
        self.aside = {wire.Read: self._read}

    def _find(self, command: wire.Find) -> None:
        offsets = self._broker.publishing.find(TopicName.parse(command.topic), command.dedup)
        self._broker.check_lease()
        self._outbound.send(wire.Found(command.request_id, offsets))

    async def _read(self, command: wire.Read) -> None:
        topic = self._broker.registry.topic(TopicName.parse(command.topic))
        stop = None if command.stop < 0 else command.stop
        async with self._outbound.large_answer():
            page = await self._broker.read(topic, command.start, stop, command.max_messages)
            self._broker.check_lease()
            self._outbound.send(
                wire.Page(
                    command.request_id,
                    topic.name.full,
                    page.next_offset,
                    page.end_offset,
                    page.offsets,
                    page.due_ms,
                    page.published_ms,
                    page.batch.encode() if len(page.batch) else b"",
                )
            )
