"""Bugs that the simulation must find. Each replaces a function of the broker by a wrong one.

The broker itself has no switch for bugs: ``planted`` puts the wrong function in its place while a
``with`` block runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import trio

from escapement.broker.broker import Broker
from escapement.broker.lease_keeper import LeaseKeeper
from escapement.broker.node.balancer import Balancer, Situation
from escapement.broker.node.reception import Reception
from escapement.broker.outbox.ack_relay import AckRelay
from escapement.broker.publishing import rescheduling
from escapement.broker.subscription.delivery.in_flight import InFlight
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic import delivery_window
from escapement.broker.topic.delivery_window import DeliveryWindow
from escapement.broker.upkeep import unwritten
from escapement.broker.upkeep.forgetter import Forgetter
from escapement.message import Bools, Int64s
from escapement.protocol.amend_status import AmendStatus
from escapement.storage import lease
from escapement.storage.commit import group_rows, shared_writer, writer
from escapement.storage.commit.shared_writer import SharedWriter
from escapement.storage.directory import sync_directory
from escapement.storage.index.segments.manifest import ManifestFile
from escapement.storage.outbox.application import OutboxInApplication
from escapement.timewheel import Entries

# Each makes its replacements by calls of ``replace(owner, name, wrong)``.
Replace = Callable[[Any, str, Any], None]


def _ack_forgotten_at_checkpoint(replace: Replace) -> None:
    """A checkpoint trims the journal and does not write the acknowledgements."""
    _forget_at_checkpoint(replace, lambda id: id > 0)


def _cancel_forgotten_at_checkpoint(replace: Replace) -> None:
    """A checkpoint trims the journal and does not write the cancellations."""
    _forget_at_checkpoint(replace, lambda id: id < 0)


def _forget_at_checkpoint(replace: Replace, forgets: Callable[[int], bool]) -> None:
    """Let checkpoints leave out the sets of offsets that ``forgets`` selects by their ids."""
    usual = unwritten._take_set

    def take_set(id: int, offsets: Any, *others: Any) -> None:
        if forgets(id):
            offsets.mark_clean()
        else:
            usual(id, offsets, *others)

    replace(unwritten, "_take_set", take_set)


def _manifest_swapped_before_fsync(replace: Replace) -> None:
    def update(self: Any, change: Any, on_rename: Any) -> None:
        with self._lock:
            manifest = change(self.current)
            temporary = self._path.with_name("MANIFEST.new")
            temporary.write_bytes(manifest.encode())
            on_rename()
            temporary.rename(self._path)
            sync_directory(self._path.parent)
            with self._path.open("rb") as file:
                os.fsync(file.fileno())
            self.current = manifest

    replace(ManifestFile, "update", update)


def _cursor_advanced_too_far(replace: Replace) -> None:
    usual = Subscription.acknowledge

    def acknowledge(
        self: Subscription, offsets: Int64s, done: Any, entries: Any = None, **more: Any
    ) -> int:
        if entries is None and more.get("lapsed") is None:
            offsets = np.union1d(offsets, offsets[-1:] + 1)
        return usual(self, offsets, done, entries, **more)

    replace(Subscription, "acknowledge", acknowledge)


def _epoch_not_checked_on_write(replace: Replace) -> None:
    replace(lease, "answer", lambda *row: None)
    replace(writer, "answer", lambda *row: None)
    replace(shared_writer, "answer", lambda *row: None)


def _epoch_not_checked_on_read(replace: Replace) -> None:
    """A broker delivers messages after its lease has expired."""
    replace(LeaseKeeper, "held", property(lambda self: True))
    _keep_clients_of_expired_leases(replace)


def _lease_not_checked_for_answers(replace: Replace) -> None:
    """A broker answers requests that read, although another one may have changed the topic."""
    replace(Broker, "check_lease", lambda self: None)
    _keep_clients_of_expired_leases(replace)


def _keep_clients_of_expired_leases(replace: Replace) -> None:
    """A node does not send its clients away, which would hide a check that is missing."""

    async def watch(self: Reception, *given: object) -> None:
        await trio.sleep_forever()

    replace(Reception, "watch", watch)


def _due_compared_on_the_wrong_side(replace: Replace) -> None:
    """Messages that are due later count as due, also when the broker checks again."""
    usual = DeliveryWindow.insert

    def insert(self: DeliveryWindow, arrived: Entries, now_ms: int) -> Iterator[Entries]:
        due = arrived.when_ms >= now_ms
        if due.any():
            yield delivery_window._in_order(arrived.take(due))
        if not due.all():
            yield from usual(self, arrived.take(~due), now_ms)

    replace(DeliveryWindow, "insert", insert)
    replace(SharedSubscription, "_are_due", lambda self, rows, now_ms: rows.due_ms >= 0)


def _retry_lost_on_disconnect(replace: Replace) -> None:
    usual = InFlight.take_back_consumer

    def take_back_consumer(self: InFlight, consumer_id: int) -> tuple[Rows, Rows]:
        usual(self, consumer_id)
        return Rows.none(), Rows.none()

    replace(InFlight, "take_back_consumer", take_back_consumer)


def _cancel_racing_hand_over(replace: Replace) -> None:
    """A cancel does not see that a message is on its way to a consumer."""
    usual = Subscription.was_handed

    def was_handed(self: Subscription, offsets: Int64s) -> Bools:
        return usual(self, offsets) & ~self.in_flight.offsets.contains(offsets)

    replace(Subscription, "was_handed", was_handed)


def _cancelled_message_rescheduled(replace: Replace) -> None:
    """A reschedule does not look whether another client has cancelled the message."""
    usual = rescheduling._decide

    def decide(topic: Any, found: Any, past: Any) -> Any:
        decision, due_ms = usual(topic, found, past)
        decision.statuses[decision.statuses == AmendStatus.CANCELLED] = AmendStatus.DONE
        return decision, due_ms

    replace(rescheduling, "_decide", decide)


def _dedup_sequence_outside_the_commit(replace: Replace) -> None:
    """The progress of producers becomes durable with the next checkpoint only."""
    replace(group_rows, "_producers", lambda group: [])


def _generation_dropped_too_early(replace: Replace) -> None:
    """A generation of the log is dropped although it has live messages."""

    async def emptied(self: Forgetter, oldest: Any, held: Any) -> bool:
        for one in held:
            if self._registry.exists(one.topic_id):
                self._empty[one.topic_id] = self._subscription_ids(one.topic_id)
        return True

    replace(Forgetter, "_emptied", emptied)


def _draining_node_keeps_bundles(replace: Replace) -> None:
    """A node that is draining releases nothing."""
    usual = Balancer._released

    def released(self: Balancer, seen: Situation, nodes: list[str], takes: bool) -> list[int]:
        return usual(self, seen, nodes, takes) if self._node_id in nodes else []

    replace(Balancer, "_released", released)


def _failed_groups_told_as_stored(replace: Replace) -> None:
    """If a shared transaction fails, all lanes but the first are told that it is stored."""
    usual = SharedWriter._write

    async def write(self: SharedWriter, connection: Any, places: Any) -> None:
        await usual(self, connection, places)
        for place in places[1:]:
            place.stored = True
            place.wait.end()

    replace(SharedWriter, "_write", write)


def _outbox_rows_moved_again(replace: Replace) -> None:
    """A relay takes over from one that has moved rows, and does not make these rows done."""

    def settle(self: Any, outbox: Any, record: Any) -> list[Any]:
        self._begin()
        self._end(record.batch)
        return []

    replace(OutboxInApplication, "_settle", settle)


def _acknowledgement_marked_and_forgotten(replace: Replace) -> None:
    """A relay marks acknowledgements in transactions that the log does not have."""

    async def acknowledge(self: Any, rows: Any) -> None:
        await trio.lowlevel.checkpoint()

    replace(AckRelay, "_acknowledge", acknowledge)


BUGS: Final[dict[str, Callable[[Replace], None]]] = {
    "ack forgotten at checkpoint": _ack_forgotten_at_checkpoint,
    "manifest swapped before fsync": _manifest_swapped_before_fsync,
    "cursor advanced too far": _cursor_advanced_too_far,
    "epoch not checked on write": _epoch_not_checked_on_write,
    "epoch not checked on read": _epoch_not_checked_on_read,
    "lease not checked for answers": _lease_not_checked_for_answers,
    "due compared on the wrong side": _due_compared_on_the_wrong_side,
    "retry lost on disconnect": _retry_lost_on_disconnect,
    "cancel racing hand-over": _cancel_racing_hand_over,
    "cancel forgotten at checkpoint": _cancel_forgotten_at_checkpoint,
    "cancelled message rescheduled": _cancelled_message_rescheduled,
    "dedup sequence outside the commit": _dedup_sequence_outside_the_commit,
    "generation dropped one too early": _generation_dropped_too_early,
    "failed groups told as stored": _failed_groups_told_as_stored,
    "draining node keeps bundles": _draining_node_keeps_bundles,
    "outbox rows moved again": _outbox_rows_moved_again,
    "acknowledgement marked and forgotten": _acknowledgement_marked_and_forgotten,
}


@contextlib.contextmanager
def planted(bug: str) -> Iterator[None]:
    """Plant a bug of ``BUGS`` inside the ``with`` block."""
    with contextlib.ExitStack() as stack:

        def replace(owner: Any, name: str, wrong: Any) -> None:
            there = vars(owner)
            if name in there:
                stack.callback(setattr, owner, name, there[name])
                setattr(owner, name, wrong)

        BUGS[bug](replace)
        yield
