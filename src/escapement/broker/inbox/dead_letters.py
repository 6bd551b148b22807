"""The dead letters of a subscription: listing, redrive and purge.

A *dead letter* is a copy of a message that a subscription gave up: its last permitted delivery
failed, or it expired or was dropped. The copy is an ordinary message of a dead-letter topic. That
topic has a subscription of the broker, ``dead-letters``. Dead letters that this subscription has
not acknowledged are *pending*: they can be listed, redriven and purged. A purge acknowledges them.
A redrive also writes inbox entries for the original topic, in the same transaction, and so
publishes the messages again.

A dead-letter topic may serve several subscriptions; a request sees only the dead letters of one. If
a subscription was deleted or got another dead-letter topic, requests for its earlier dead letters
name the dead-letter topic that has them.

If the database has several bundles of topics, the broker of the dead-letter topic carries requests
out. The inbox relay of the original topic's bundle moves the inbox entries of a redrive.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import trio

from escapement.broker.inbox.dead_letter_topic import DeadLetterTopic, Whose
from escapement.broker.inbox.original_topics import OriginalTopics
from escapement.broker.inspection.moved_keys import with_passed
from escapement.broker.inspection.peek import peek
from escapement.broker.inspection.search import Bounds, Sought
from escapement.broker.log.log_reader import LogReader
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.dead_letters import dead_letter
from escapement.broker.subscription.dead_letters.dead_letter import DEAD_LETTERS_SUBSCRIPTION
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.errors import NotFound, StorageUnavailable
from escapement.message import Int64s, MessageBatch, Times
from escapement.spread import places_ms, seeds
from escapement.storage.blocking import Run, read_from
from escapement.storage.catalog.catalog import Namespace
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.lane import State
from escapement.storage.inbox.entry import InboxEntry
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex, Key
from escapement.storage.offsets import OffsetSet

# The most keys of the index, and the most bytes of payloads, that one step reads.
_STEP_MESSAGES: Final = 1_024
_STEP_BYTES: Final = 4 << 20
# The bounds of one search for the dead letters of a message. They keep it below 0.1 s.
_FIND: Final = Bounds(keys=1 << 18, messages=1 << 13, size_bytes=32 << 20)
# The most of these dead letters. A message has several if a seek delivered it again.
_MOST_FOUND: Final = 16
# The most redrives and purges in progress. Each has one step of dead letters in memory.
_ENDING: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Some dead letters of one subscription, as columns of equal height, by due time."""

    due_ms: Int64s  # in the dead-letter topic
    offsets: Int64s  # in the dead-letter topic
    batch: MessageBatch
    origins: Sequence[dict[str, Any]]  # the properties that tell where each came from, and why

    def pick(self, at: Int64s) -> Page:
        """Return the dead letters at these positions."""
        origins = [self.origins[row] for row in at.tolist()]
        return Page(self.due_ms[at], self.offsets[at], self.batch.take(at), origins)


# Returns the inbox entries for the dead letters of a page that end now, by their offsets.
_Entries = Callable[[Int64s], Sequence[InboxEntry]]
_MakeEntries = Callable[[DeadLetterTopic, Page], _Entries]


class DeadLetters:
    """Answers requests about dead letters.

    Args:
      originals: the topics that dead letters came from.
      check_times: checks that a namespace accepts messages with some times.
      wake: wakes the task that sends messages of a subscription.
    """

    def __init__(
        self,
        registry: Registry,
        index: DelayedIndex,
        log: LogReader,
        pipeline: CommitPipeline,
        run: Run,
        originals: OriginalTopics,
        check_times: Callable[[Namespace, Times], None],
        wake: Callable[[Topic, Subscription], None],
    ) -> None:
        self._originals = originals
        self._registry = registry
        self._index = index
        self._log = log
        self._pipeline = pipeline
        self._run = run
        self._check_times = check_times
        self._wake = wake
        self._ending = trio.Semaphore(_ENDING)

    async def topic_of(self, whose: Whose) -> Topic | None:
        """Return the topic with the dead letters; None if it does not exist yet. See ``pages``."""
        found = await self._find(whose)
        return None if found is None else found.topic

    async def pages(self, whose: Whose) -> AsyncGenerator[Page, None]:
        """Return the pending dead letters of a subscription, in pages that are read on demand.

        Raises:
          NotFound: if ``whose.lie_in`` does not exist; without it, if the subscription or its topic
            does not exist.
          WrongBundle: if the dead-letter topic belongs to another bundle.
        """
        return self._pages(await self._find(whose), None)

    async def count(
        self, whose: Whose, only: Int64s | None, most: int, after: Key = KEY_MIN
    ) -> tuple[int, Key | None]:
        """Count the pending dead letters of a subscription, about ``most`` in one call.

        Args:
          only: the offsets in the dead-letter topic that count; None: all.
          after: the key to start from: the one that the previous call returned.

        Returns:
          The count, and the key to continue from; None if all are counted.

        Raises the errors of ``pages``.
        """
        counted, dlq = 0, await self._find(whose)
        async with aclosing(self._pages(dlq, only, after)) as found:
            async for page in found:
                counted += len(page.offsets)
                if counted >= most:
                    return counted, Key(int(page.due_ms[-1]), int(page.offsets[-1])).successor()
        return counted, None

    async def show(self, whose: Whose, offset: int) -> Page:
        """Return one pending dead letter of a subscription, by its offset in the dead-letter topic.

        Raises:
          NotFound: if there is none, or the subscription or its topic does not exist.
        """
        dlq = await self._find(whose)
        if dlq is not None and 0 <= offset < dlq.topic.next_offset:
            offsets, moves = np.array([offset]), dlq.topic.amendments.moves
            found, _ = await self._log.published(dlq.topic.id, offsets, moves, 0)
            due_ms = moves.current(found.offsets, found.due_ms)
            page = await self._mine(dlq, due_ms, found.offsets, found.batch)
            if len(page.offsets):
                return page
        raise NotFound(f"{whose} has no dead letter at offset {offset}")

    async def find(
        self, whose: Whose, offset: int, sought: Sought, now_ms: int, after: Key = KEY_MIN
    ) -> tuple[Page | None, Key | None, int]:
        """Find the pending dead letters that a message has become, in a bounded search.

        Args:
          offset: the offset of the message in its topic.
          sought: the span of time in which they are due, and the message's key if it has one.
          after: the key to start from: the one that the previous call returned.

        Returns:
          Those found so far; the key to continue from (None: all were looked at); and how many keys
          of the index were read.

        Raises the errors of ``pages``.
        """
        dlq = await self._find(whose)
        if dlq is None:
            return None, None, 0
        await dlq.topic.index_backfill.whole_index()
        origin = dead_letter.origin_of(whose.topic, whose.subscription, offset)
        found = await peek(
            dlq.topic,
            self._index,
            self._run,
            now_ms,
            replace(sought, properties=origin),
            _MOST_FOUND,
            after,
            _FIND,
        )
        page = await self._mine(dlq, found.due_ms, found.offsets, found.batch)
        return page, found.next, found.looked

    async def redrive(
        self, whose: Whose, only: Int64s | None, most: int, spread_ms: int = 0
    ) -> int:
        """Send up to ``most`` pending dead letters back to their original topic.

        Returns how many were sent. This is durable when the call returns.

        Args:
          only: the offsets in the dead-letter topic of those to send; None: all.
          spread_ms: scatter the due times over this span, from now on.

        Raises:
          DelaysDisabled, DelayTooLong: if the topic does not accept delays up to ``spread_ms``.
          NotFound: as ``pages``.
          StorageUnavailable: if the database accepts no writes now.
        """
        await self.check_redrive(whose, spread_ms)
        return await self._end(await self._find(whose), only, most, _redriving(spread_ms))

    async def check_redrive(self, whose: Whose, spread_ms: int) -> None:
        """Check that dead letters can be sent back to their original topic; see ``redrive``."""
        namespace = await self._originals.namespace(whose.topic)
        if spread_ms:
            self._check_times(namespace, Times(delay_ms=np.array([spread_ms])))

    async def redrive_these(
        self, whose: Whose, offsets: Int64s, spread_ms: int, passed_ms: int
    ) -> int:
        """Send dead letters back to their original topic, as ``redrive``, but read from the log.

        So this takes time for these dead letters, not for all. Those that are not pending any more
        are left out. Returns how many were sent.

        Args:
          offsets: the offsets in the dead-letter topic, ascending.
          spread_ms: scatter the due times over this span.
          passed_ms: how much of the span has passed already.
        """
        await self.check_redrive(whose, spread_ms)
        ended = 0
        async with self._ending:
            while len(offsets):
                dlq = await self._find(whose)
                if dlq is None:
                    break
                moves = dlq.topic.amendments.moves
                found, looked = await self._log.published(dlq.topic.id, offsets, moves)
                due_ms = moves.current(found.offsets, found.due_ms)
                page = await self._mine(dlq, due_ms, found.offsets, found.batch)
                if dlq.is_there:
                    self._check_up()
                    write = _redriving(spread_ms, passed_ms)(dlq, page)
                    ended += await self._end_page(dlq, page, write)
                    offsets = offsets[looked:]
        return ended

    async def purge(self, whose: Whose, only: Int64s | None, most: int) -> int:
        """Delete up to ``most`` pending dead letters; return how many were deleted.

        Args:
          only: the offsets in the dead-letter topic of those to delete; None: all.

        Raises:
          NotFound: as ``pages``.
          StorageUnavailable: if the database accepts no writes now.
        """
        dlq = await self._find(whose)
        return await self._end(dlq, only, most, lambda dlq, page: lambda fresh: ())

    async def _find(self, whose: Whose) -> DeadLetterTopic | None:
        """Return the dead-letter topic; None if it or its ``dead-letters`` does not exist yet.

        Raises the errors of ``pages``.
        """
        lie_in = whose.lie_in
        if lie_in is None:
            lie_in = await self._originals.dead_letter_topic(whose.topic, whose.subscription)
            if lie_in.full not in self._registry.topics:
                return None
        found = self._registry.topic(lie_in)
        subscription = found.shared.get(DEAD_LETTERS_SUBSCRIPTION)
        return None if subscription is None else DeadLetterTopic(whose, found, subscription)

    async def _end(
        self,
        dlq: DeadLetterTopic | None,
        only: Int64s | None,
        most: int,
        dead_letters: _MakeEntries,
    ) -> int:
        if dlq is None:
            return 0
        ended = 0
        async with self._ending, aclosing(self._pages(dlq, only)) as found:
            async for page in found:
                page = page.pick(np.arange(min(most - ended, len(page.offsets))))
                self._check_up()
                ended += await self._end_page(dlq, page, dead_letters(dlq, page))
                if ended >= most:
                    break
        return ended

    def _check_up(self) -> None:
        if self._pipeline.state is not State.UP:
            raise StorageUnavailable(
                "dead letters cannot be moved while the database accepts no writes; try again later"
            )

    async def _end_page(self, dlq: DeadLetterTopic, page: Page, dead_letters: _Entries) -> int:
        durable, subscription = trio.Event(), dlq.subscription
        ended = subscription.acknowledge(page.offsets, lambda count: durable.set(), dead_letters)
        self._wake(dlq.topic, subscription)  # some of them may have been in flight
        await durable.wait()
        return ended

    async def _pages(
        self, dlq: DeadLetterTopic | None, only: Int64s | None, at: Key = KEY_MIN
    ) -> AsyncGenerator[Page, None]:
        """Yield the pending dead letters in steps. Each step is read when the caller asks for it.

        Ends early if ``dead-letters`` is deleted, or moved by a seek, meanwhile.

        Args:
          only: the offsets of those to yield; None: all.
          at: the key in the delivery order to start from.
        """
        if dlq is None:
            return
        await dlq.topic.index_backfill.whole_index()
        end = dlq.topic.next_offset  # dead letters that arrive later wait for the next request
        begin, moves = at, dlq.topic.amendments.moves
        met = OffsetSet()  # those yielded: a rescheduled dead letter may be found twice
        # Read beyond now: a rescheduled dead letter is pending before its new due time too.
        while at < KEY_MAX:
            plan = self._index.plan(dlq.topic.id, at, KEY_MAX, _STEP_MESSAGES)
            due_ms, offsets = await read_from(plan, self._run, plan.read)
            at = plan.stop
            due_ms, offsets = with_passed(moves, due_ms, offsets, begin, at)
            here = (offsets < end) & ~met.contains(offsets)
            if only is not None:
                here &= np.isin(offsets, only)
            due_ms, offsets = due_ms[here], offsets[here]
            most = dlq.topic.sizes.frame_messages(_STEP_MESSAGES, _STEP_BYTES)
            for low in range(0, len(offsets), most):
                piece = slice(low, low + most)
                if not dlq.is_there:
                    return
                page = await self._fetch(dlq, due_ms[piece], offsets[piece])
                if not dlq.is_there:
                    return
                met.add(page.offsets)
                if len(page.offsets):
                    yield page

    async def _fetch(self, dlq: DeadLetterTopic, due_ms: Int64s, offsets: Int64s) -> Page:
        # The index may no longer have dead letters that were acknowledged since their keys were
        # read.
        here = dlq.pending(due_ms, offsets)
        due_ms, offsets = due_ms[here], offsets[here]
        fetch = self._index.fetch(dlq.topic.id, due_ms, offsets)
        batch = await read_from(fetch, self._run, fetch.read)
        return await self._mine(dlq, due_ms, offsets, batch)

    async def _mine(
        self, dlq: DeadLetterTopic, due_ms: Int64s, offsets: Int64s, batch: MessageBatch
    ) -> Page:
        """Return the dead letters of the subscription among these messages, if they are pending."""
        # Decoding the properties of a page may take some 100 ms.
        origins = await self._run(dead_letter.origins, batch)
        theirs = {"topic": dlq.whose.topic.full, "subscription": dlq.whose.subscription}
        mine = np.array([theirs.items() <= origin.items() for origin in origins], bool)
        at = np.flatnonzero(mine & dlq.pending(due_ms, offsets))
        return Page(due_ms, offsets, batch, origins).pick(at)


def _redriving(spread_ms: int, passed_ms: int = 0) -> _MakeEntries:
    """Return the function that makes the inbox entries of a redrive.

    Args:
      spread_ms: the span over which the due times are scattered; 0 for none.
      passed_ms: how much of the span has passed already.
    """

    def dead_letters(dlq: DeadLetterTopic, page: Page) -> _Entries:
        source = f"redrive/{dlq.subscription.record.id}"
        back = dead_letter.restored(page.batch)

        def written(fresh: Int64s) -> Sequence[InboxEntry]:
            at = np.flatnonzero(np.isin(page.offsets, fresh))
            offsets, delay_ms = page.offsets[at], None
            if spread_ms:
                places = places_ms(seeds(dlq.topic.name.full, offsets), spread_ms)
                delay_ms = np.maximum(places - passed_ms, 0)
            return dead_letter.inbox_entries(
                dlq.whose.topic, source, back.take(at), offsets, delay_ms
            )

        return written

    return dead_letters
