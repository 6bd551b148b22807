"""Every bound of a broker, by name, on one page.

These numbers alone bound the broker's memory. The comment at each bound says what it counts and
what happens when it is reached.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from escapement.durations import DEFAULT_MAX_DELAY_MS

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """The bounds of one broker. The defaults suit a machine with 1 GiB of free memory."""

    # -- connections
    connections: int = 10_000  # a further connection is refused and closed
    # Connections of one IPv4 address, or of one IPv6 network of 64 bits; a further one is refused.
    # Loopback addresses have no such bound: proxies on the broker's machine use them.
    connections_per_address: int = 2_500
    # Connections whose handshake (TLS and Hello) is not done. At this bound, a further one closes
    # the oldest of them. A good client is done within a few round trips.
    greetings: int = 2_000
    # The time for the handshake, TLS and Hello together. Then the connection is closed.
    handshake_timeout_s: float = 5.0
    idle_timeout_s: float = 90.0  # a connection that sends nothing for this long is closed
    # Output queued for one connection. At this bound its consumers get no messages until the
    # connection has sent some.
    outbound_bytes: int = 8 * MIB
    # Output queued for one connection. At this bound its peer is disconnected.
    outbound_hard_bytes: int = 64 * MIB
    # Output queued for all connections. At this bound, frames of messages become small, and a
    # connection above its share queues no messages and no large answers until it has sent some.
    output_bytes: int = 64 * MIB
    # Unfinished frames of all connections, and frames of messages that wait. At this bound, a
    # connection with more than its share of it stops reading in the middle of a frame until there
    # is room.
    inbound_bytes: int = 64 * MIB
    # Memory of the requests of all connections that wait for the database or for room in the
    # output, without 64 KiB of each connection. At this bound, a connection with more than its
    # share of it stops reading at the head of its next request until there is room.
    request_bytes: int = 32 * MIB
    # The time in which a peer must send one frame while other connections wait for room in
    # ``inbound_bytes`` or ``request_bytes``. A peer that needs longer, or that is silent for a
    # second, is disconnected.
    inbound_timeout_s: float = 5.0
    # Published bytes of one connection without a receipt, with 1 KiB more for each publish. At this
    # bound the broker stops reading from the connection until it has sent receipts.
    unconfirmed_bytes: int = 32 * MIB

    # -- messages
    max_delay_ms: int = DEFAULT_MAX_DELAY_MS  # publishes with a longer delay are refused
    # The longest time for which a publish is held back to keep to a maximum publish rate. A publish
    # that would have to wait longer is refused.
    publish_hold_ms: int = 1_000

    # -- group commits
    # Bytes that wait for commit, with 1 KiB more for each publish. Then all publishers wait.
    commit_waiting_bytes: int = 64 * MIB
    commit_lanes: int = 2  # connections that write group commits at the same time
    # Acknowledgements that are not durable yet. At this bound no messages are delivered. At twice
    # this bound acknowledgements are refused.
    unwritten_acks: int = 1_000_000
    # The Acks, and other items, that these acknowledgements are in: each takes up to 1 KiB. The
    # same happens at this bound, and at twice this bound.
    unwritten_ack_items: int = 65_536

    # -- the index
    # Memory for entries that no segment on disk has yet. A checkpoint, which writes them to disk,
    # starts when half of it is used. When all of it is used, publishers wait for the checkpoint.
    index_memory_bytes: int = 128 * MIB
    index_cache_bytes: int = 96 * MIB  # blocks of segments that are cached for deliveries
    # Keys in the timing wheels of all topics, 20 bytes each. Further keys stay on disk until later.
    window_messages: int = 2_000_000
    # Bytes of log rows that are added to a lost index in one step of the event loop, which takes
    # some ms; one row may be larger.
    backfill_step_bytes: int = 2 * MIB
    checkpoint_interval_s: float = 5.0  # between two checkpoints, unless the index needs one sooner

    # -- the log
    # A generation of this size ends before its time if most of its messages are finished, so that
    # its tables can be dropped soon.
    sparse_generation_bytes: int = 64 * MIB

    # -- subscriptions
    # Ready messages of one subscription. Further due messages stay in the index and are read later.
    ready_messages: int = 100_000
    # Numbers in the history of lateness of all subscriptions, 16 bytes each. A subscription has one
    # for each minute and each different lateness of its messages. At this bound the oldest minutes
    # of all subscriptions are forgotten.
    lateness_cells: int = 2_000_000
    # Messages of all subscriptions that are read ahead for delivery by priority or key. Further
    # messages are read when they are delivered.
    staged_bytes: int = 96 * MIB
    # For delivery by priority or key: if at least this many messages fall due at once, they are
    # read ahead before they become ready.
    large_offer: int = 2048
    # Messages of one subscription in flight and in retry. At this bound it delivers no more.
    unacked_messages: int = 4_000_000
    deliver_messages: int = 4096  # messages in one frame
    deliver_bytes: int = 1 * MIB  # bytes in one frame, unless a single message is larger
    permits: int = 1_000_000  # permits of one consumer; further permits are not counted

    # -- the inbox
    inbox_poll_s: float = 1.0  # how often the broker looks for entries of other processes
    # Entries of one target that are moved to the log at once, unless a single entry is larger.
    inbox_step_bytes: int = 1 * MIB
    inbox_round_bytes: int = 4 * MIB  # entries of all targets that are in memory at once

    # -- topics
    # Topics with objects in memory, about 18 KiB each. Beyond this, unused topics become passive.
    active_topics: int = 10_000

    # -- schedules; due occurrences of all schedules are published together, in turns
    schedules: int = 100_000  # a few hundred bytes each; a further schedule is refused
    schedule_bytes: int = 256 * KIB  # payload and key of one schedule; larger ones are refused
    # Occurrences of schedules that are published in one turn. Others wait for the next turn.
    schedule_turn_occurrences: int = 2_000
    schedule_turn_bytes: int = 4 * MIB  # bytes published in one turn, unless one message is larger
    schedule_turn_topics: int = 200  # topics that one turn publishes to
    # The pause between two turns, in which further occurrences gather.
    schedule_rest_ms: int = 50
    # The pause is at least this long for each topic that the last turn published to.
    schedule_topic_rest_ms: int = 1

    # -- bulk changes
    push_targets: int = 1_000  # push targets of a broker; a further one is refused
    bulk_changes: int = 16  # bulk changes that have not ended; a further one is refused
    bulk_ended: int = 100  # bulk changes that have ended; at this bound the oldest is deleted
    # Messages of one bulk change. One that matches more fails before it changes any. A selection in
    # progress, of which there is one at a time, takes a few bytes for each of them.
    bulk_messages: int = 10_000_000
    # Messages that a bulk change changes at once, and their bytes, unless a single one is larger.
    bulk_slice_messages: int = 4_096
    bulk_slice_bytes: int = 4 * MIB

    # -- groups
    groups: int = 10_000  # groups of one topic; messages that name a further group are refused
    follow_up_bytes: int = 256 * KIB  # size of one follow-up; larger ones are refused

    # -- dedup keys
    dedup_keys: int = 4_000_000  # keys of all topics, 32 bytes each; then new keys are refused

    # -- replace keys
    # Pending messages of all topics that have one, 48 bytes each; then new ones are refused.
    replace_keys: int = 1_000_000

    # -- time
    max_sleep_s: float = 0.5  # the time within which a jump of the wall clock is noticed
    stop_timeout_s: float = 8.0  # the time for commits and the last checkpoint of a stop
    lease_ms: int = 10_000  # the duration of the lease; a successor can take over after it

    def of_bundle(self, count: int) -> BrokerLimits:
        """Return the bounds of each broker of a process, if the database has ``count`` bundles.

        The brokers divide the memory among them, but each has some.
        """
        if count == 1:
            return self
        divided = {
            name: min(max(getattr(self, name) // count, least), getattr(self, name))
            for name, least in _LEAST_OF_BUNDLE.items()
        }
        # The lanes of several bundles share transactions. Fewer lanes make larger groups.
        return replace(self, commit_lanes=1, **divided)


# The bounds that the brokers of a process divide, and the least of each broker. A frame of the
# protocol must fit into its bytes.
_LEAST_OF_BUNDLE: Final = {
    "commit_waiting_bytes": 16 * MIB,
    "index_memory_bytes": 16 * MIB,
    "index_cache_bytes": 8 * MIB,
    "window_messages": 100_000,
    "lateness_cells": 100_000,
    "staged_bytes": 16 * MIB,
    "active_topics": 1_000,
}

DEFAULT_LIMITS: Final = BrokerLimits()
