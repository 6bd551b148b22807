"""Every bound of a broker, by name, on one page.

Memory is bounded by these numbers and nothing else (invariant 9). What happens
when each is met stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from escapement.durations import DEFAULT_MAX_DELAY_MS

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Bounds of one broker; the defaults suit a machine with 1 GiB to spare."""

    # -- connections
    connections: int = 10_000  # the next one is refused and closed
    handshake_timeout_s: float = 10.0  # a connection that says nothing is closed
    idle_timeout_s: float = 90.0  # a connection without even a ping is closed
    outbound_bytes: int = 8 * MIB  # per connection; its consumers get nothing more until drained
    outbound_hard_bytes: int = 64 * MIB  # per connection; a peer that reads nothing is cut off
    inbound_bytes: int = 64 * MIB  # of unfinished frames, of all; then large ones wait
    inbound_patience_s: float = 5.0  # for a frame that others wait for; then its peer is cut off
    unconfirmed_bytes: int = 32 * MIB  # per connection; reading from it stops until receipts go out

    # -- messages
    max_delay_ms: int = DEFAULT_MAX_DELAY_MS  # publishes past it are refused

    publish_hold_ms: int = 1_000  # a publish over its rate is refused rather than held longer

    # -- a commit group
    commit_waiting_bytes: int = 64 * MIB  # all connections wait when as much waits for commit
    commit_lanes: int = 2
    unwritten_acks: int = 1_000_000  # while MySQL is away: dispatch stops at as many

    # -- the index
    index_memory_bytes: int = 128 * MIB  # a checkpoint starts at half; commits wait when it is full
    index_cache_bytes: int = 96 * MIB  # blocks of segments kept for delivery, in any order
    window_messages: int = 2_000_000  # keys in all wheels, 20 bytes each; the rest waits on disk
    checkpoint_interval_s: float = 5.0

    # -- the log
    sparse_generation_bytes: int = 64 * MIB  # so large, old and mostly done, it ends before its day

    # -- a subscription
    ready_messages: int = 100_000  # what finds no room lowers the read mark
    staged_bytes: int = 96 * MIB  # of all: read ahead where priorities or keys choose what goes
    large_offer: int = 2048  # so many that fall due at once are read ahead before they are ready
    unacked_messages: int = 4_000_000  # in flight and in retry; dispatch pauses
    deliver_messages: int = 4096  # in one frame
    deliver_bytes: int = 1 * MIB  # in one frame, unless a single message is larger
    permits: int = 1_000_000  # credit one consumer can hold

    # -- the inbox
    inbox_poll_s: float = 1.0  # how soon letters are seen that others write
    inbox_step_bytes: int = 1 * MIB  # letters of one target moved at once, unless one is larger
    inbox_round_bytes: int = 4 * MIB  # letters of all targets in memory

    # -- topics
    active_topics: int = 10_000  # some 18 KiB each; beyond, unused ones become passive

    # -- schedules
    schedules: int = 100_000  # a few hundred bytes each; the next one is refused
    schedule_bytes: int = 256 * KIB  # payload and key of each; larger ones are refused
    schedule_turn_occurrences: int = 2_000  # published at once; the rest waits for the next turn
    schedule_turn_bytes: int = 4 * MIB  # published at once, unless one is larger
    schedule_turn_topics: int = 200  # that are published to at once
    schedule_rest_ms: int = 50  # between two turns; what falls due meanwhile is gathered
    schedule_topic_rest_ms: int = 1  # the same for each topic of the turn, where that is longer

    # -- groups
    groups: int = 10_000  # of a topic; messages that name another are refused
    follow_up_bytes: int = 256 * KIB  # of each; larger ones are refused

    # -- dedup keys
    dedup_keys: int = 4_000_000  # of all topics, 32 bytes each; publishes with new ones are refused

    # -- time
    max_sleep_s: float = 0.5  # how soon a jump of the wall clock is noticed
    stop_timeout_s: float = 8.0  # for commits and the last checkpoint when stopping
    lease_ms: int = 10_000


DEFAULT_LIMITS: Final = BrokerLimits()
