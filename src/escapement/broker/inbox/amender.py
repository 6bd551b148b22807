"""The amender: carries out requests to cancel or reschedule messages that wait in the inbox.

An application inserts such a request in its own transaction (broker/outbox). It waits in the inbox
between the messages of its topic (storage/inbox/amend_request.py). The inbox relay *begins* it:

a. In the log, one transaction applies the request to the messages before it in the inbox, and
   records its *bound*, the topic's next offset (broker/inbox/amended_entries.py).

After that, the relay moves the messages around the request without waiting for it. The begun
requests of a target form a *run*, which takes three steps. A search by key may take long, so each
run is a task of its own, and a target has one run at a time.

b. Find the messages that the requests name, below their bounds.
c. Cancel and reschedule them (broker/publishing), and wait until this is durable.
d. In the log, delete the entries.

Requests of a run are committed all before its first step. So cancels go first: a cancelled message
stays cancelled. Of several requests to reschedule a message, the last one counts. These
interleavings are closed:

- *The broker crashes between a and d.* The next broker repeats the run. This changes nothing,
  except for messages that came meanwhile, and these have offsets above the bounds.
- *The broker crashes before a.* No message from behind the request is in the topic yet.
- *A message before the request is moved while the request is begun.* The relay begins requests only
  while no append of the target is in progress. So such a message is below the bound, or it is in
  the inbox, where step a changes it.
- *The relay has read requests, and their run ends.* The relay starts no run for a target that had
  one when it read the entries. It reads them again.
- *A hanging broker wakes up* in a run that its successor has finished. Its steps are group commits,
  which the lease guards.
- *An operator discards the entries, or a client deletes the topic,* during a run. Step d needs no
  entry. A topic that was created again has another runtime, and the run ends.
- *A client reschedules a message between c and d, and the broker crashes.* The run is repeated, and
  its due time counts. This is the only effect of a repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple

import numpy as np
import trio

from escapement.broker.inbox.refusals import ends_the_broker
from escapement.broker.inspection.selecting import select_keys
from escapement.broker.publishing.amending import Amending
from escapement.broker.publishing.publishing import Publishing
from escapement.broker.publishing.rescheduling import Rescheduling
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.dedup import column
from escapement.errors import EscapementError, NotFound
from escapement.message import NO_TIME, Int64s
from escapement.storage.blocking import Run
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.commit_wait import CommitWait
from escapement.storage.inbox import inbox
from escapement.storage.inbox.amend_request import AmendRequest, AmendRequests
from escapement.storage.index import DelayedIndex

# The most targets whose requests are carried out at once. Others wait for the next round.
MAX_RUNS: Final = 64
# The most runs that search by contents at once. Each searches one page, and lets the next one in.
_SEARCHES: Final = 2
# The most messages that are changed at once.
_CHANGES: Final = 32_768


class _Job(NamedTuple):
    """A run: its topic, and its entries by id."""

    topic: Topic
    entries: dict[int, AmendRequests]


class _Bounded(NamedTuple):
    """A request, and the offset that all messages before it are below."""

    request: AmendRequest
    bound: int


class Amender:
    """The amender of one broker.

    Args:
      run: runs a search in a thread.
      on_ended: called when a run has ended, so that the relay continues with its target.
    """

    def __init__(
        self,
        registry: Registry,
        pipeline: CommitPipeline,
        index: DelayedIndex,
        publishing: Publishing,
        amending: Amending,
        rescheduling: Rescheduling,
        clock: Clock,
        run: Run,
        on_ended: Callable[[], None],
    ) -> None:
        self._registry = registry
        self._pipeline = pipeline
        self._index = index
        self._publishing = publishing
        self._amending = amending
        self._rescheduling = rescheduling
        self._clock = clock
        self._run = run
        self._on_ended = on_ended
        self._searching: AbstractAsyncContextManager[None] = trio.Semaphore(_SEARCHES)
        self._jobs, self._waiting = trio.open_memory_channel[_Job](MAX_RUNS)
        self.busy: set[str] = set()  # the targets whose requests are being carried out
        self.refused: dict[str, EscapementError] = {}  # by target, why its last run failed

    def start(self, topic: Topic, entries: dict[int, AmendRequests]) -> None:
        """Start a run, unless its target has one already, or too many others have.

        Args:
          entries: the entries of the run, by id. Their requests are begun.
        """
        target = topic.name.full
        if target in self.busy or len(self.busy) >= MAX_RUNS:
            return
        self.busy.add(target)
        self._jobs.send_nowait(_Job(topic, entries))

    async def run(self) -> None:
        """Carry out runs, forever."""
        async with trio.open_nursery() as nursery:
            async for job in self._waiting:
                nursery.start_soon(self._carry_out, job)
                del job  # a task that refers to a topic keeps it in memory

    async def _carry_out(self, job: _Job) -> None:
        target = job.topic.name.full
        try:
            await self._amend(job)
        except NotFound:
            pass  # the topic was deleted, and its entries with it
        except EscapementError as error:
            if ends_the_broker(error):
                raise
            self.refused[target] = error
        self.busy.discard(target)
        self._on_ended()

    async def _amend(self, job: _Job) -> None:
        topic = job.topic
        bounded = [
            _Bounded(request, entry.bound)
            for entry in job.entries.values()
            for request in entry.requests
        ]
        found = await self._find(topic, bounded)
        none = [np.zeros(0, np.int64)]
        cancels = [one.request.cancels for one in bounded]
        cancelled = np.unique(
            np.concatenate(none + [f for f, c in zip(found, cancels, strict=True) if c])
        )
        for part in _parts(cancelled):
            await self._cancel(topic, part)
        moves = [
            (offsets, one.request.at_ms)
            for offsets, one in zip(found, bounded, strict=True)
            if not one.request.cancels
        ]
        for at_ms, offsets in _last_times(moves, cancelled):
            for part in _parts(offsets):
                await self._reschedule(topic, part, at_ms)
        ids = list(job.entries)
        await self._pipeline.transact(lambda connection: inbox.delete(connection, ids))

    async def _find(self, topic: Topic, bounded: Sequence[_Bounded]) -> list[Int64s]:
        """Return the offsets of the messages that each request names."""
        digests = [one.request.dedup for one in bounded if one.request.dedup]
        keys = frozenset(one.request.key for one in bounded if one.request.key)
        by_dedup, by_key = iter(()), dict[bytes, Int64s]()
        if keys:
            await topic.index_backfill.ended()
            by_key = await select_keys(
                topic, self._index, self._run, self._clock.now_ms(), keys, self._searching
            )
        if digests:
            by_dedup = iter(self._publishing.find(topic.name, column(digests)).tolist())
        found = []
        for request, bound in bounded:
            if request.key:
                offsets = by_key.get(request.key, np.zeros(0, np.int64))
            else:
                offsets = np.array([next(by_dedup) if request.dedup else request.offset])
            found.append(offsets[(offsets >= 0) & (offsets < bound)])
        return found

    async def _cancel(self, topic: Topic, offsets: Int64s) -> None:
        self._registry.check_open(topic)
        wait = CommitWait()
        await self._amending.cancel(topic.name.full, offsets, lambda outcome: wait.end())
        await wait.ended()

    async def _reschedule(self, topic: Topic, offsets: Int64s, at_ms: int) -> None:
        self._registry.check_open(topic)
        # A message that is due already needs no delay, which its namespace may refuse.
        at_ms = at_ms if at_ms > self._clock.now_ms() else NO_TIME
        # The outbox has checked the time; a policy that changed since must not block the target.
        await self._rescheduling.reschedule(
            topic.name.full, offsets, NO_TIME, at_ms, by_policy=False
        )


def _last_times(
    moves: Sequence[tuple[Int64s, int]], cancelled: Int64s
) -> Iterator[tuple[int, Int64s]]:
    """Yield each new due time, and the messages that get it.

    Args:
      moves: the messages and the new due time of each request, in order.
      cancelled: messages that are cancelled.
    """
    if not moves:
        return
    offsets = np.concatenate([some for some, _ in moves])
    times_ms = np.repeat([at_ms for _, at_ms in moves], [len(some) for some, _ in moves])
    # The last of the equal elements counts: the first one from the end.
    offsets, first = np.unique(offsets[::-1], return_index=True)
    times_ms = times_ms[::-1][first]
    left = ~np.isin(offsets, cancelled)
    for at_ms in np.unique(times_ms[left]).tolist():
        yield at_ms, offsets[left & (times_ms == at_ms)]


def _parts(offsets: Int64s) -> Iterator[Int64s]:
    return (offsets[low : low + _CHANGES] for low in range(0, len(offsets), _CHANGES))
