"""The creation of many topics at once: some thousand a second, over one connection.

The topics are created in steps. Each step runs as one statement in a group commit. The new topics
are passive: a topic gets its runtime, its objects in memory, at its first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from escapement.broker.registry.changes import Changes
from escapement.broker.registry.registry import Registry
from escapement.clock import Clock
from escapement.errors import AlreadyExists
from escapement.names import NamespaceName, TopicName, check_name
from escapement.storage.catalog.topic_batch import create_topics

# The number of topics that one statement creates. Other items of its commit lane wait about 10 ms
# for it.
_STEP_TOPICS: Final = 500


class TopicBatches:
    """The operation that creates many topics at once."""

    def __init__(self, registry: Registry, changes: Changes, clock: Clock) -> None:
        self._registry = registry
        self._changes = changes
        self._clock = clock

    async def create(self, names: Sequence[TopicName], subscription: str | None) -> list[TopicName]:
        """Create the topics of these names that do not exist. Return the names of the new topics.

        Args:
          subscription: the name of a shared subscription that each new topic gets; it begins
            with the first message.

        Raises:
          Conflict: if a namespace is being deleted; some topics may have been created.
          StorageUnavailable: if the database cannot be reached; some topics may have been created.
        """
        if subscription is not None:
            check_name("subscription", subscription)
        by_namespace: dict[NamespaceName, list[TopicName]] = {}
        for name in dict.fromkeys(names):
            by_namespace.setdefault(name.in_namespace, []).append(name)
        created: list[TopicName] = []
        for namespace, within in by_namespace.items():
            await self._registry.namespaces.ensure(namespace)
            for low in range(0, len(within), _STEP_TOPICS):
                created += await self._create(
                    namespace, within[low : low + _STEP_TOPICS], subscription
                )
        return created

    async def _create(
        self, namespace: NamespaceName, names: list[TopicName], subscription: str | None
    ) -> list[TopicName]:
        bundle = self._registry.bundle
        while True:
            found = self._registry.namespaces.find(namespace)
            self._registry.namespaces.check_open(found)
            left = {name.name: name for name in names if name.full not in self._registry.topics}
            if not left:
                return []
            now_ms = self._clock.now_ms()
            create = partial(
                create_topics,
                dialect=bundle.dialect,
                namespace_id=found.id,
                names=list(left.values()),
                subscription=subscription,
                now_ms=now_ms,
                bundle_id=bundle.id,
            )
            try:
                records = await self._changes.durably(create)
            except AlreadyExists:
                # Another request has just created one of these topics, and will enter it in the
                # registry. Look again which topics are missing.
                await trio.lowlevel.checkpoint()
                continue
            for topic, record in records:
                self._registry.enter(topic, record)
            return list(left.values())
