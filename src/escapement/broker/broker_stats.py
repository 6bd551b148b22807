"""Figures about the whole broker."""

from __future__ import annotations

from typing import TypedDict


class BrokerStats(TypedDict):
    """Figures about the whole broker, and texts about parts that wait.

    ``commits``, ``published`` and ``delivered`` count since ``started_at_ms``. The quantiles of the
    durations of group commits are None before the first one. ``log_bytes`` is the size of the rows
    that the broker has written to its log tables. ``log_rows`` and ``log_disk_bytes`` are about the
    log tables of all bundles. The broker reads them when asked, once a minute at most. They are
    None if it does not own bundle 0, or could not read them yet.
    """

    name: str
    id: str
    version: str
    started_at_ms: int
    log: str
    database: str
    lease_held: bool
    topics: int
    active_topics: int
    index_memory_bytes: int
    index_disk_bytes: int
    index_segments: int
    published: int
    delivered: int
    commits: int
    commit_p50_us: int | None
    commit_p99_us: int | None
    log_bytes: int
    log_rows: int | None
    log_disk_bytes: int | None
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
