"""The bulk changes of a broker, and the task that carries them out.

A *bulk change* applies one action (cancel, reschedule, run now, redrive) to all messages of a topic
that match a filter. It has two phases:

a. It *selects*: it searches the delivery order page by page, and stores the offsets that it found
   (storage/bulk_change.py). Nothing changes yet.
b. It *runs*: it takes the next offsets, a *slice*, carries out the action (slices.py), and stores
   its progress.

The messages that match when the search begins are those of the bulk change, if their offsets are
below its *bound*, the end of the topic at the start of the bulk change. In phase b the offsets
ascend. So a message is handled once, even if its new due time lies ahead in the delivery order.

One task takes a *turn* for each bulk change in order: a page, or a slice. After each turn it rests
for as long as the turn took, so other work has at least half of the time. Only one bulk change
selects at a time, because its offsets are in memory.

These interleavings are closed:

- *The broker crashes in phase a.* The next broker searches again, with the same bound.
- *The broker crashes between a slice and its progress.* The next broker repeats the slice, which
  changes nothing more. Only its counts may differ: messages that were delivered or redriven
  meanwhile count as such. If a client rescheduled a message of the slice in between, the time of
  the bulk change counts.
- *The topic is deleted.* The next turn finds that its id is gone, and the bulk change fails. A
  topic that was created again under the name has another id.
- *A stop and a slice.* A stop waits for the slice in progress. Afterwards nothing changes.
- *A hanging broker wakes up.* Slices and progress are group commits, which the lease guards.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np
import trio

from escapement.broker.bulk.bulk_request import BulkRequest
from escapement.broker.bulk.selection import Selection, Selector, Target
from escapement.broker.bulk.slices import Slices, whose_of
from escapement.broker.inbox.dead_letters import DeadLetters
from escapement.broker.inbox.refusals import ends_the_broker
from escapement.broker.limits import BrokerLimits
from escapement.broker.outage import PASSING, Outage
from escapement.broker.registry.changes import Changes
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import EscapementError, LimitExceeded, NotFound, WrongBundle
from escapement.event_log import EventLog
from escapement.message import Int64s
from escapement.names import TopicName
from escapement.storage import bulk_change
from escapement.storage.bulk_change import BulkChange, BulkState
from escapement.storage.engine.base import Connection

_log = EventLog(__name__)

# The shortest rest after a turn.
_REST_S: Final = 0.01
# The pause before a retry while the database is unavailable.
_RETRY_S: Final = 1.0
# The parts that one transaction stores. Each has up to half a megabyte.
_PARTS_AT_ONCE: Final = 4


class BulkChanges:
    """The bulk changes of one broker.

    Args:
      stored: the bulk changes in the database, by ascending id.
    """

    def __init__(
        self,
        registry: Registry,
        changes: Changes,
        selector: Selector,
        slices: Slices,
        dead_letters: DeadLetters,
        clock: Clock,
        limits: BrokerLimits,
        stored: Iterable[BulkChange],
    ) -> None:
        self.selector = selector
        self._registry = registry
        self._changes = changes
        self._slices = slices
        self._dead_letters = dead_letters
        self._clock = clock
        self._limits = limits
        self._by_id = {change.id: change for change in stored}
        self._waiting = deque(one.id for one in self._by_id.values() if not one.has_ended)
        self._starting = trio.Lock()
        self._turn = trio.Lock()  # held while a bulk change makes progress, or is stopped
        self._selection: Selection | None = None
        self._selecting_id = 0  # whose selection it is
        self._part_id, self._part = 0, np.zeros(0, np.int64)  # the next offsets of one of them
        self._idle = trio.lowlevel.ParkingLot()
        self._stopping = False

    # -- requests ----------------------------------------------------------------

    def all(self) -> list[BulkChange]:
        """Return all bulk changes, the latest first."""
        return sorted(self._by_id.values(), key=lambda one: -one.id)

    async def find(self, topic: TopicName, id: int) -> BulkChange:
        """Return a bulk change of a topic.

        Raises:
          NotFound: if there is none with this id.
          WrongBundle: if the broker of another bundle carries it out. That may be the bundle of a
            dead-letter topic.
        """
        bundle = self._registry.bundle
        if id not in self._by_id and not bundle.is_only:
            there = await self._changes.durably(
                lambda connection: bulk_change.bundle_of(connection, id)
            )
            if there is not None and there != bundle.id:
                raise WrongBundle(
                    f"Bundle {there} has the bulk change {id}, and this broker owns bundle"
                    f" {bundle.id}. Ask the broker that owns bundle {there}.",
                    there,
                )
        return self._find(topic, id)

    def _find(self, topic: TopicName, id: int) -> BulkChange:
        found = self._by_id.get(id)
        if found is None or found.topic != topic.full:
            raise NotFound(
                f"{topic.full} has no bulk change {id}; `escapement admin bulk list` shows all"
            )
        return found

    async def target(self, wanted: BulkRequest) -> tuple[Target, Topic | None]:
        """Return where the messages of a request lie, and that topic if it exists yet.

        Raises:
          NotFound: if the topic, or the subscription of a redrive, does not exist.
          WrongBundle: if the messages lie in another bundle.
        """
        if wanted.whose is None:
            return Target(wanted.topic, None), self._registry.topic(wanted.topic)
        topic = await self._dead_letters.topic_of(wanted.whose)
        return Target(wanted.topic if topic is None else topic.name, wanted.whose), topic

    async def start(self, wanted: BulkRequest) -> BulkChange:
        """Start a bulk change. It is durable when this returns.

        Raises:
          NotFound: if the topic, or the subscription of a redrive, does not exist.
          WrongBundle: if the messages lie in another bundle.
          DelaysDisabled, DelayTooLong: if the topic does not accept the latest of the new times.
          LimitExceeded: if too many bulk changes have not ended.
        """
        async with self._starting:
            if len(self._waiting) >= self._limits.bulk_changes:
                raise LimitExceeded(
                    f"{len(self._waiting)} bulk changes have not ended, which is the maximum. "
                    "Wait for them, or stop some."
                )
            target, topic = await self.target(wanted)
            if topic is None:
                raise NotFound(f"{target} has no dead letters.")
            change = wanted.begun(topic, self._clock.now_ms())
            await self._slices.check(topic, change)
            change.id = await self._changes.durably(
                lambda connection: bulk_change.create(connection, change, self._registry.bundle.id)
            )
            self._by_id[change.id] = change
            self._waiting.append(change.id)
        _log.info(
            "bulk.started",
            "bulk change %d of %s: %s",
            change.id,
            change.topic,
            change.action.value,
            bulk_change=change.id,
            topic=change.topic,
            action=change.action.value,
            role=change.role,
        )
        self._idle.unpark()
        return change

    async def stop(self, topic: TopicName, id: int) -> BulkChange:
        """Stop a bulk change. It changes no message after this returns.

        Messages that it has changed stay changed. Stopping one that has ended changes nothing.

        Raises:
          NotFound: if there is none with this id.
          StorageUnavailable: if the database accepts no writes now; it goes on.
        """
        await self.find(topic, id)
        async with self._turn:
            change = self._find(topic, id)
            if not change.has_ended:
                await self._end(change, BulkState.STOPPED)
        return change

    # -- the task ------------------------------------------------------------------

    async def halt(self) -> None:
        """End the turn in progress and take no further one, because the broker stops."""
        self._stopping = True
        async with self._turn:
            pass

    async def run(self) -> None:
        """Carry out the bulk changes, forever."""
        outage = Outage("bulk.waiting", "bulk changes wait")
        try:
            while True:
                while not self._waiting or self._stopping:
                    await self._idle.park()
                began_s = trio.current_time()
                with outage:
                    async with self._turn:
                        await self._take_turn()
                if outage.goes_on:
                    await trio.sleep(_RETRY_S)
                else:
                    await trio.sleep(max(trio.current_time() - began_s, _REST_S))
        finally:
            with trio.CancelScope(shield=True):
                await self._drop_selection()

    async def _take_turn(self) -> None:
        """Let the next bulk change make progress. The caller holds ``_turn``."""
        change = self._next()
        if change is None or self._stopping:
            return
        try:
            topic = self._topic_of(change)
            if change.state is BulkState.SELECTING:
                await self._select(change)
            else:
                await self._run_slice(change, self._slices.size(topic))
        except PASSING:
            raise  # tried again later
        except EscapementError as error:
            if ends_the_broker(error):
                raise
            await self._end(change, BulkState.FAILED, str(error))

    def _next(self) -> BulkChange | None:
        """Return whose turn it is; a selection waits until the one in progress is complete."""
        for _ in range(len(self._waiting)):
            change = self._by_id[self._waiting[0]]
            self._waiting.rotate(-1)
            selects = change.state is BulkState.SELECTING
            if not (selects and self._selection is not None and self._selecting_id != change.id):
                return change
        return None

    def _topic_of(self, change: BulkChange) -> Topic:
        """Return the topic that has the messages.

        Raises:
          NotFound: if it was deleted.
        """
        record = self._registry.topics.get(change.lies_in)
        if record is None or record.id != change.topic_id:
            raise NotFound(f"The topic {change.lies_in} was deleted.")
        topic = self._registry.activate(record.id)
        self._registry.check_open(topic)
        return topic

    async def _select(self, change: BulkChange) -> None:
        """Read a page of the selection of a bulk change. Store the selection after the last one."""
        if self._selection is None:
            lies_in = TopicName.parse(change.lies_in)
            pages = self.selector.pages(Target(lies_in, whose_of(change)), change.filter)
            most = self._limits.bulk_messages
            self._selection, self._selecting_id = Selection(pages, change.bound, most), change.id
        try:
            if await self._selection.read():
                return
        except BaseException:
            await self._drop_selection()  # its search has ended
            raise
        # An earlier broker, or an attempt during an outage, may have stored some parts.
        while await self._changes.durably(
            lambda connection: bulk_change.discard_parts(connection, change.id)
        ):
            pass
        parts = self._selection.parts()
        while some := list(islice(parts, _PARTS_AT_ONCE)):
            await self._changes.durably(_adding(change.id, some))
        selected = len(self._selection)
        await self._save(change, state=BulkState.RUNNING, total=selected)
        await self._drop_selection()

    async def _run_slice(self, change: BulkChange, size: int) -> None:
        """Change the next messages of a bulk change. End it if there are none."""
        if self._part_id != change.id or not len(self._part):
            self._part_id, self._part = (
                change.id,
                await self._changes.durably(
                    lambda connection: bulk_change.read_part(
                        connection, change.id, change.next_offset
                    )
                ),
            )
        offsets = self._part[:size]
        if not len(offsets):
            await self._end(change, BulkState.DONE)
            return
        counts = change.counts.plus(await self._slices.carry_out(change, offsets))
        await self._save(change, next_offset=int(offsets[-1]) + 1, counts=counts)
        self._part = self._part[len(offsets) :]

    async def _end(self, change: BulkChange, state: BulkState, error: str = "") -> None:
        await self._save(change, state=state, error=error, ended_at_ms=self._clock.now_ms())
        self._waiting.remove(change.id)
        if self._selecting_id == change.id:
            await self._drop_selection()
        if self._part_id == change.id:
            self._part_id, self._part = 0, self._part[:0]
        _log.log(
            logging.WARNING if state is BulkState.FAILED else logging.INFO,
            "bulk.ended",
            "bulk change %d of %s is %s%s",
            change.id,
            change.topic,
            state.value,
            f": {error}" if error else "",
            bulk_change=change.id,
            topic=change.topic,
            state=state.value,
            **change.counts._asdict(),
        )
        await self._forget()

    async def _forget(self) -> None:
        """Delete the oldest bulk changes that have ended, beyond the bound."""
        ended = [one.id for one in self._by_id.values() if one.has_ended]
        old = ended[: max(len(ended) - self._limits.bulk_ended, 0)]
        if not old:
            return
        with suppress(*PASSING):  # the next end deletes them
            await self._changes.durably(lambda connection: bulk_change.delete(connection, old))
            for id in old:
                del self._by_id[id]

    async def _save(self, change: BulkChange, **changed: object) -> None:
        """Store new values of some fields of a bulk change, and then set them in memory."""
        changed["updated_at_ms"] = self._clock.now_ms()
        new = replace(change, **changed)  # type: ignore[arg-type]
        await self._changes.durably(
            lambda connection: bulk_change.save(connection, new, self._registry.bundle.id)
        )
        for name, value in changed.items():
            setattr(change, name, value)

    async def _drop_selection(self) -> None:
        selection, self._selection, self._selecting_id = self._selection, None, 0
        if selection is not None:
            await selection.close()


def _adding(change_id: int, parts: list[Int64s]) -> Callable[[Connection], None]:
    return lambda connection: bulk_change.add_parts(connection, change_id, parts)
