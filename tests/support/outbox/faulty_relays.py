"""An outbox relay whose connection to the application's database breaks at chosen steps."""

from __future__ import annotations

from typing import Final

from escapement.broker.outbox.named_topics import NamedTopics
from escapement.broker.outbox.outbox_relay import OutboxRelay
from escapement.errors import OutcomeUnknown, StorageUnavailable
from escapement.storage.blocking import inline
from escapement.storage.engine.connection_pool import ConnectionPool
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.storage.outbox.mapping import OURS, OutboxMapping
from escapement.storage.schema import log_identity
from escapement.testing import World
from support.outbox.outboxes import Application
from support.storage.commit_pipelines import FaultyEngine

DAY_MS: Final = 86_400_000


class Faults:
    """The steps at which a connection to the application's database breaks."""

    def __init__(self, application: Application) -> None:
        self.engine = FaultyEngine(application.engine, self._before, self._after)
        self.before: dict[str, int] = {}
        self.lost_replies = 0

    def _before(self, step: str) -> None:
        for beginning, count in self.before.items():
            if count and step.startswith(beginning):
                self.before[beginning] -= 1
                raise StorageUnavailable("broken, says the test")

    def _after(self, step: str) -> None:
        if self.lost_replies:
            self.lost_replies -= 1
            raise OutcomeUnknown("the reply to a COMMIT is lost, says the test")


def topics_of(world: World) -> NamedTopics:
    """Return what relays of a broker know about the topics that rows name."""
    connections = ConnectionPool(world._engine)
    return NamedTopics(world.server.services.registry, connections, inline, DAY_MS)


def relay_of(
    world: World, engine: FaultyEngine, log: SqliteEngine, mapping: OutboxMapping = OURS
) -> OutboxRelay:
    """Return a relay that commits through the pipeline of a whole broker."""
    services = world.server.services
    connection = log.connect()
    identity = log_identity(connection)
    connection.close()
    return OutboxRelay(
        engine,
        log,
        identity,
        {},
        services.pipeline.transact,
        world.clock,
        inline,
        topics_of(world).delays_of,
        services.inbox_relay.wake,
        mapping,
    )
