"""Figures about the whole broker."""

from __future__ import annotations

from typing import TypedDict


class BrokerStats(TypedDict):
    """Figures about the whole broker, and what waits, in words."""

    name: str
    id: str
    log: str
    database: str
    lease_held: bool
    topics: int
    active_topics: int
    index_memory_bytes: int
    index_disk_bytes: int
    index_segments: int
    log_generation: int
    table_parallelism: int
    waiting_bytes: int
    waiting_acks: int
    inbox_moved: int
    outbox_moved: int
    outbox_refused: int
    outbox_acks_learned: int
    outboxes_waiting: list[str]
    tables_waiting: list[str]
    dead_letters_waiting: list[str]
    inbox_blocked: list[str]
