"""The dead letters of a subscription: listing, redrive and purge.

Dead letters are ordinary messages of the dead-letter topic. Those that its subscription ``KEEPER``
has not acknowledged are still there. A redrive or a purge acknowledges them. A redrive also writes
inbox entries for the original topic, in the same transaction.

A dead-letter topic may serve several subscriptions; each sees only its own dead letters. When a
subscription was deleted or got another dead-letter topic, its earlier dead letters are found by
naming the topic that has them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import trio

from escapement.broker.inspection.moved_keys import with_passed
from escapement.broker.log.log_reader import LogReader
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.dead_letters import dead_letter
from escapement.broker.subscription.dead_letters.dead_letter import KEEPER
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.topic.topic import Topic
from escapement.errors import NotFound, StorageUnavailable
from escapement.message import Bools, Int64s, MessageBatch
from escapement.names import TopicName
from escapement.storage.blocking import Run, read_from
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.lane import State
from escapement.storage.inbox.entry import InboxEntry
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex, Key
from escapement.storage.offsets import OffsetSet

# The most keys, and the most bytes of payloads, that one step reads.
_STEP_MESSAGES: Final = 1_024
_STEP_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Some dead letters, in the order of their arrival; columns of equal height."""

    due_ms: Int64s  # when they arrived in the dead-letter topic
    offsets: Int64s  # in the dead-letter topic
    batch: MessageBatch
    origins: Sequence[dict[str, Any]]

    def pick(self, at: Int64s) -> Page:
        """Return the dead letters at these positions."""
        origins = [self.origins[row] for row in at.tolist()]
        return Page(self.due_ms[at], self.offsets[at], self.batch.take(at), origins)


@dataclass(frozen=True, slots=True)
class Whose:
    """The subscription whose dead letters are meant."""

    topic: TopicName
    subscription: str
    # The dead-letter topic; None: that of the subscription, which must exist then.
    lie_in: TopicName | None = None

    def __str__(self) -> str:
        return f"{self.topic.full} {self.subscription}"


@dataclass(frozen=True, slots=True)
class _Grave:
    """The dead-letter topic of one subscription, and its keeper."""

    whose: Whose
    topic: Topic
    keeper: SharedSubscription

    @property
    def is_there(self) -> bool:
        """Whether the keeper still serves the topic.

        It does not after it was deleted, alone or with the topic. It does not after a seek either:
        then a new keeper has the dead letters that this one would acknowledge.
        """
        return self.topic.subscription(KEEPER) is self.keeper


class DeadLetters:
    """The requests about dead letters."""

    def __init__(
        self,
        registry: Registry,
        index: DelayedIndex,
        log: LogReader,
        pipeline: CommitPipeline,
        run: Run,
    ) -> None:
        self._registry = registry
        self._index = index
        self._log = log
        self._pipeline = pipeline
        self._run = run

    async def look(self, whose: Whose, count: int) -> list[Page]:
        """Return the first ``count`` dead letters. Raises ``NotFound``."""
        pages = []
        async with aclosing(self._pages(self._grave(whose), None)) as found:
            async for page in found:
                pages.append(page.pick(np.arange(min(count, len(page.offsets)))))
                count -= len(page.offsets)
                if count <= 0:
                    break
        return pages

    async def count(
        self, whose: Whose, only: Int64s | None, most: int, after: Key = KEY_MIN
    ) -> tuple[int, Key | None]:
        """Count dead letters, about ``most`` in one call.

        Returns:
          The count, and the key to continue from if any may be left.

        Raises:
          NotFound: if the subscription does not exist.
        """
        counted = 0
        async with aclosing(self._pages(self._grave(whose), only, after)) as found:
            async for page in found:
                counted += len(page.offsets)
                if counted >= most:
                    return counted, Key(int(page.due_ms[-1]), int(page.offsets[-1])).successor()
        return counted, None

    async def show(self, whose: Whose, offset: int) -> Page:
        """Return one dead letter, by its offset in the dead-letter topic. Raises ``NotFound``."""
        grave = self._grave(whose)
        if grave is not None and 0 <= offset < grave.topic.next_offset:
            offsets, moves = np.array([offset]), grave.topic.amendments.moves
            found, _ = await self._log.published(grave.topic.id, offsets, moves, 0)
            due_ms = moves.current(found.offsets, found.due_ms)
            page = self._mine(grave, due_ms, found.offsets, found.batch)
            if len(page.offsets):
                return page
        raise NotFound(f"{whose} has no dead letter at offset {offset}")

    async def redrive(self, whose: Whose, only: Int64s | None, most: int) -> int:
        """Send up to ``most`` dead letters back to their topic; durable when it returns.

        Raises:
          NotFound: if the subscription or its topic does not exist.
          StorageUnavailable: if the database accepts no writes now.
        """
        self._registry.topic_record(whose.topic)  # the topic that they go back to

        def dead_letters(grave: _Grave, page: Page) -> Callable[[Int64s], Sequence[InboxEntry]]:
            source = f"redrive/{grave.keeper.record.id}"
            back = dead_letter.restored(page.batch)

            def written(fresh: Int64s) -> Sequence[InboxEntry]:
                at = np.flatnonzero(np.isin(page.offsets, fresh))
                return dead_letter.inbox_entries(
                    whose.topic, source, back.take(at), page.offsets[at]
                )

            return written

        return await self._end(self._grave(whose), only, most, dead_letters)

    async def purge(self, whose: Whose, only: Int64s | None, most: int) -> int:
        """Delete up to ``most`` dead letters; durable when it returns. Raises as ``redrive``."""
        return await self._end(self._grave(whose), only, most, lambda grave, page: lambda fresh: ())

    def _grave(self, whose: Whose) -> _Grave | None:
        """Return where the dead letters are; None if no message was ever dead-lettered."""
        lie_in = whose.lie_in
        if lie_in is None:
            origin = self._registry.topic(whose.topic)
            record = self._registry.subscription_record(origin, whose.subscription)
            lie_in = dead_letter.target(whose.topic, whose.subscription, record.policy)
            if lie_in.full not in self._registry.topics:
                return None
        found = self._registry.topic(lie_in)
        keeper = found.shared.get(KEEPER)
        return None if keeper is None else _Grave(whose, found, keeper)

    async def _end(
        self,
        grave: _Grave | None,
        only: Int64s | None,
        most: int,
        dead_letters: Callable[[_Grave, Page], Callable[[Int64s], Sequence[InboxEntry]]],
    ) -> int:
        if grave is None:
            return 0
        ended = 0
        async with aclosing(self._pages(grave, only)) as found:
            async for page in found:
                page = page.pick(np.arange(min(most - ended, len(page.offsets))))
                if self._pipeline.state is not State.UP:
                    raise StorageUnavailable(
                        "dead letters cannot be moved while the database accepts no writes; "
                        "try again later"
                    )
                ended += await self._end_page(grave.keeper, page, dead_letters(grave, page))
                if ended >= most:
                    break
        return ended

    async def _end_page(
        self,
        keeper: SharedSubscription,
        page: Page,
        dead_letters: Callable[[Int64s], Sequence[InboxEntry]],
    ) -> int:
        durable = trio.Event()
        ended = keeper.acknowledge(page.offsets, lambda count: durable.set(), dead_letters)
        await durable.wait()
        return ended

    async def _pages(
        self, grave: _Grave | None, only: Int64s | None, at: Key = KEY_MIN
    ) -> AsyncGenerator[Page, None]:
        """Yield the dead letters in steps. Each step is read when the caller asks for it.

        Ends early if the keeper is deleted or sought meanwhile.
        """
        if grave is None:
            return
        end = grave.topic.next_offset  # later dead letters are left to the next request
        begin, moves = at, grave.topic.amendments.moves
        met = OffsetSet()  # a rescheduled dead letter may be found twice
        while at < KEY_MAX:  # a rescheduled dead letter counts before its new time too
            plan = self._index.plan(grave.topic.id, at, KEY_MAX, _STEP_MESSAGES)
            due_ms, offsets = await read_from(plan, self._run, plan.read)
            at = plan.stop
            due_ms, offsets = with_passed(moves, due_ms, offsets, begin, at)
            here = (offsets < end) & ~met.contains(offsets)
            if only is not None:
                here &= np.isin(offsets, only)
            due_ms, offsets = due_ms[here], offsets[here]
            most = grave.topic.sizes.frame_messages(_STEP_MESSAGES, _STEP_BYTES)
            for low in range(0, len(offsets), most):
                piece = slice(low, low + most)
                if not grave.is_there:
                    return
                page = await self._fetch(grave, due_ms[piece], offsets[piece])
                if not grave.is_there:
                    return
                met.add(page.offsets)
                if len(page.offsets):
                    yield page

    async def _fetch(self, grave: _Grave, due_ms: Int64s, offsets: Int64s) -> Page:
        # Dead letters acknowledged during the last step may have left the index.
        here = _here(grave.topic, grave.keeper, due_ms, offsets)
        due_ms, offsets = due_ms[here], offsets[here]
        fetch = self._index.fetch(grave.topic.id, due_ms, offsets)
        batch = await read_from(fetch, self._run, fetch.read)
        return self._mine(grave, due_ms, offsets, batch)

    def _mine(self, grave: _Grave, due_ms: Int64s, offsets: Int64s, batch: MessageBatch) -> Page:
        """Return the dead letters that are still there and come from the subscription."""
        origins = dead_letter.origins(batch)
        theirs = {"topic": grave.whose.topic.full, "subscription": grave.whose.subscription}
        mine = np.array([theirs.items() <= origin.items() for origin in origins], bool)
        at = np.flatnonzero(mine & _here(grave.topic, grave.keeper, due_ms, offsets))
        return Page(due_ms, offsets, batch, origins).pick(at)


def _here(topic: Topic, keeper: SharedSubscription, due_ms: Int64s, offsets: Int64s) -> Bools:
    """Return which keys are current keys of dead letters that the keeper has; bool[n]."""
    here = ~keeper.acked.contains(offsets)
    uncancelled = topic.amendments.uncancelled(offsets)
    if uncancelled is not None:
        here &= uncancelled | keeper.holds(offsets)
    stale = topic.amendments.moves.stale(due_ms, offsets)
    return here if stale is None else here & ~stale
