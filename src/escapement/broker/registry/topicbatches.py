"""Creates many topics at once: some thousand in a second, over one connection.

Each step is one statement of a group commit. The topics are passive afterwards: who uses one has
its runtime made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from escapement.broker.registry.changes import Changes
from escapement.broker.registry.registry import Registry
from escapement.clock import Clock
from escapement.errors import AlreadyExists
from escapement.names import NamespaceName, TopicName, check_name
from escapement.storage.topicbatch import create_topics

# Topics in one statement: the appends beside it wait for some 10 ms.
_STEP_TOPICS: Final = 500


class TopicBatches:
    """See the module's docstring."""

    def __init__(self, registry: Registry, changes: Changes, clock: Clock) -> None:
        self._registry = registry
        self._changes = changes
        self._clock = clock

    async def create(self, names: Sequence[TopicName], subscription: str | None) -> list[TopicName]:
        """Create those topics that are not there; returns which they are.

        Args:
          subscription: the name of a shared subscription that each new topic gets; it begins
            with the first message.

        Raises:
          Conflict: if a namespace is being deleted; some may have been created.
          StorageUnavailable: likewise.
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
        while True:
            found = self._registry.namespaces.find(namespace)
            self._registry.namespaces.check_open(found)
            left = {name.name: name for name in names if name.full not in self._registry.topics}
            if not left:
                return []
            now_ms = self._clock.now_ms()
            try:
                records = await self._changes.durably(
                    lambda connection, left=left, found=found, now_ms=now_ms: create_topics(  # type: ignore[misc]
                        connection, found.id, list(left), subscription, now_ms
                    )
                )
            except AlreadyExists:
                # Somebody creates one of them now: it is entered when that is durable.
                await trio.lowlevel.checkpoint()
                continue
            for topic, record in records:
                self._registry.enter(topic, record)
            return list(left.values())
