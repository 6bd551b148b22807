"""The delivery order of topics, as timing wheels, subscriptions and the sender read it.

:class:`~escapement.storage.index.index.DelayedIndex` is the delivery order of the topics of the
log. The topics of message tables have another one (``broker/tables/table_index.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from escapement.message import Int64s, MessageBatch, UInt32s
from escapement.storage.index.columns import Pick
from escapement.storage.index.keys import Key, Keys
from escapement.storage.index.limits import IndexLimits
from escapement.storage.index.plan import Store


class KeyPlan(Protocol):
    """A read of the keys in a range, up to but without the key ``stop``. See ``plan.Plan``."""

    stop: Key

    @property
    def in_memory(self) -> bool: ...
    @property
    def files(self) -> int: ...
    @property
    def can_locate(self) -> bool: ...
    def read_traits(self) -> tuple[Int64s, Int64s, UInt32s | None]: ...
    def locate(self, keys: Keys, size_bytes: int) -> Iterator[tuple[Int64s, list[Pick]]]: ...


class MessageFetch(Protocol):
    """A read of the messages of given keys. See ``plan.Fetch``."""

    @property
    def in_memory(self) -> bool: ...
    def read(self) -> MessageBatch: ...
    def read_there(self, low: int, high: int) -> tuple[Int64s | None, MessageBatch]: ...


class DeliveryOrder(Protocol):
    """The messages of topics in delivery order. See ``index.DelayedIndex``."""

    @property
    def limits(self) -> IndexLimits: ...
    def plan(self, topic_id: int, start: Key, until: Key, max_messages: int) -> KeyPlan: ...
    def fetch(
        self, topic_id: int, due_ms: Int64s, offsets: Int64s, staged: Store | None = None
    ) -> MessageFetch: ...
    def next_due(self, topic_id: int, after: Key) -> int | None: ...
    def has_priorities(self, topic_id: int) -> bool: ...
    def add(
        self, topic_id: int, offsets: Int64s | int, due_ms: Int64s, batch: MessageBatch
    ) -> UInt32s | None: ...
