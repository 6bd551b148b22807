"""The topics and subscriptions that dead letters came from.

A dead-letter topic and the original topic usually belong to different bundles, because names are
hashed. The broker of the dead-letter topic lists and redrives the dead letters. What it must know
of an original topic in another bundle it reads from the catalog in the database. If it cannot know
where dead letters lie, or they lie in another bundle, it raises ``WrongBundle`` with that bundle.
"""

from __future__ import annotations

from escapement.broker.registry.changes import Transact
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.dead_letters import dead_letter
from escapement.errors import NotFound
from escapement.names import TopicName
from escapement.storage.catalog import catalog
from escapement.storage.catalog.catalog import Namespace
from escapement.storage.catalog.policy import SubscriptionPolicy
from escapement.storage.engine.base import Connection


class OriginalTopics:
    """Answers questions about original topics of any bundle.

    Args:
      transact: runs a statement in a transaction.
    """

    def __init__(self, registry: Registry, transact: Transact) -> None:
        self._registry = registry
        self._transact = transact

    async def dead_letter_topic(self, topic: TopicName, subscription: str) -> TopicName:
        """Return the dead-letter topic that a subscription has now, which need not exist.

        Raises:
          NotFound: if the subscription or its topic does not exist.
          WrongBundle: if the dead-letter topic belongs to another bundle.
        """
        found = dead_letter.target(topic, subscription, await self._policy(topic, subscription))
        if found.full not in self._registry.topics:
            self._registry.bundle.check_name(found.full)
        return found

    async def _policy(self, topic: TopicName, subscription: str) -> SubscriptionPolicy:
        if self._is_here(topic):
            there = self._registry.topic(topic)
            return self._registry.subscription_record(there, subscription).policy

        def read(connection: Connection) -> SubscriptionPolicy:
            id = catalog.find_topic(connection, topic).id
            for record in catalog.subscriptions_of(connection, id):
                if record.name == subscription:
                    return record.policy
            raise NotFound(f"{topic.full} has no subscription {subscription}.")

        return await self._transact(read)

    async def namespace(self, topic: TopicName) -> Namespace:
        """Return the namespace of an original topic.

        Raises:
          NotFound: if the topic does not exist.
        """
        if self._is_here(topic):
            return self._registry.namespace_of(self._registry.topic_record(topic).id)

        def read(connection: Connection) -> Namespace:
            catalog.find_topic(connection, topic)
            return catalog.find_namespace(connection, topic.in_namespace)

        return await self._transact(read)

    def _is_here(self, topic: TopicName) -> bool:
        """Return whether the broker knows without a look at the database if the topic exists."""
        return self._registry.bundle.is_only or topic.full in self._registry.topics
