"""Every bound of a broker, by name, on one page.

These numbers alone bound the broker's memory (invariant 9). A comment beside each bound describes
the effect of reaching it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from escapement.durations import DEFAULT_MAX_DELAY_MS

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """The bounds of one broker. The defaults suit a machine with 1 GiB of free memory."""

    # -- connections
    connections: int = 10_000  # the next one is refused and closed
    handshake_timeout_s: float = 10.0  # a connection without a handshake is closed
    idle_timeout_s: float = 90.0  # a connection without even a ping is closed
    outbound_bytes: int = 8 * MIB  # per connection; then its consumers wait until it drains
    outbound_hard_bytes: int = 64 * MIB  # per connection; then the peer is disconnected
    output_bytes: int = 64 * MIB  # of all connections; then large shares wait until they drain
    inbound_bytes: int = 64 * MIB  # unfinished frames of all connections; large ones wait
    inbound_timeout_s: float = 5.0  # for a frame while others wait; then its peer is disconnected
    unconfirmed_bytes: int = 32 * MIB  # per connection; reading stops until receipts go out

    # -- messages
    max_delay_ms: int = DEFAULT_MAX_DELAY_MS  # publishes with a longer delay are refused

    publish_hold_ms: int = 1_000  # a publish that its rate would hold longer is refused

    # -- a commit group
    commit_waiting_bytes: int = 64 * MIB  # waiting for commit; all connections wait at this bound
    commit_lanes: int = 2
    unwritten_acks: int = 1_000_000  # while MySQL is unavailable; then dispatch stops

    # -- the index
    index_memory_bytes: int = 128 * MIB  # a checkpoint starts at half of it; commits wait at it
    index_cache_bytes: int = 96 * MIB  # segment blocks cached for delivery
    window_messages: int = 2_000_000  # keys in all wheels, 20 bytes each; others stay on disk
    checkpoint_interval_s: float = 5.0

    # -- the log
    sparse_generation_bytes: int = 64 * MIB  # a mostly done generation this large ends early

    # -- a subscription
    ready_messages: int = 100_000  # others stay in the index, and the read mark moves back
    staged_bytes: int = 96 * MIB  # of all subscriptions; read ahead to choose by priority or key
    large_offer: int = 2048  # this many due at once are read ahead before they become ready
    unacked_messages: int = 4_000_000  # in flight and in retry; then dispatch pauses
    deliver_messages: int = 4096  # in one frame
    deliver_bytes: int = 1 * MIB  # in one frame, unless a single message is larger
    permits: int = 1_000_000  # the most credit of one consumer

    # -- the inbox
    inbox_poll_s: float = 1.0  # how soon entries of other processes are noticed
    inbox_step_bytes: int = 1 * MIB  # entries of one target moved at once, or one larger entry
    inbox_round_bytes: int = 4 * MIB  # entries of all targets in memory

    # -- topics
    active_topics: int = 10_000  # about 18 KiB each; then unused ones become passive

    # -- schedules
    schedules: int = 100_000  # a few hundred bytes each; the next one is refused
    schedule_bytes: int = 256 * KIB  # payload and key of each; larger ones are refused
    schedule_turn_occurrences: int = 2_000  # published at once; the rest waits for the next turn
    schedule_turn_bytes: int = 4 * MIB  # published at once, unless one is larger
    schedule_turn_topics: int = 200  # published to at once
    schedule_rest_ms: int = 50  # between two turns; gathers what falls due meanwhile
    schedule_topic_rest_ms: int = 1  # per topic of the last turn, if the sum is longer

    # -- groups
    groups: int = 10_000  # of a topic; messages that name a further one are refused
    follow_up_bytes: int = 256 * KIB  # of each; larger ones are refused

    # -- dedup keys
    dedup_keys: int = 4_000_000  # of all topics, 32 bytes each; then new keys are refused

    # -- time
    max_sleep_s: float = 0.5  # how soon a jump of the wall clock is noticed
    stop_timeout_s: float = 8.0  # for commits and the last checkpoint when stopping
    lease_ms: int = 10_000


DEFAULT_LIMITS: Final = BrokerLimits()
