"""The topics and subscriptions that rows in databases of applications name.

They belong to any bundle. A relay reads those of other bundles from the catalog in the database.
"""

from __future__ import annotations

from collections.abc import Collection

from escapement.broker.registry.registry import Registry
from escapement.errors import NotFound
from escapement.names import TopicName
from escapement.storage.blocking import Run
from escapement.storage.catalog import catalog
from escapement.storage.catalog.catalog import SubscriptionRecord
from escapement.storage.catalog.delay_policy import DelayPolicy
from escapement.storage.catalog.policy import TopicPolicy
from escapement.storage.engine.connection_pool import ConnectionPool


class NamedTopics:
    """Answers questions about topics and subscriptions of any bundle.

    Args:
      connections: to the database of the log.
      run: makes calls to it.
      max_delay_ms: the longest delay that the broker allows.
    """

    def __init__(
        self, registry: Registry, connections: ConnectionPool, run: Run, max_delay_ms: int
    ) -> None:
        self.registry = registry
        self._connections = connections
        self._run = run
        self._max_delay_ms = max_delay_ms

    def delays_of(self, topic: str) -> DelayPolicy:
        """Return the delays that a topic allows, by its full name, which need not exist.

        Blocking. Any thread.
        """
        return self.registry.delays_of(topic, self._policy).within(self._max_delay_ms)

    def _policy(self, name: TopicName) -> TopicPolicy:
        """Return the policy of a topic of another bundle; the default if it does not exist."""
        with self._connections.use() as connection:
            try:
                return catalog.find_topic(connection, name).policy
            except NotFound:
                return TopicPolicy()

    def subscription(self, topic: str, id: int) -> SubscriptionRecord | None:
        """Return a subscription of this bundle; None if the bundle does not have it."""
        record = self.registry.topics.get(topic)
        if record is None:
            return None
        subscriptions = self.registry.subscriptions_of(record.id)
        return next((one for one in subscriptions if one.id == id), None)

    async def topics_of(self, ids: Collection[int]) -> dict[int, str]:
        """Return the full name of the topic of each subscription that exists, in whatever bundle.

        The id of a deleted subscription is not used again.
        """
        return await self._run(self._topics_of, sorted(ids))

    def _topics_of(self, ids: list[int]) -> dict[int, str]:
        with self._connections.use() as connection:
            return catalog.topics_of_subscriptions(connection, ids)
