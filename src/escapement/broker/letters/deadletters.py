"""The dead letters of a subscription: looked at, sent back, thrown away.

They lie in the dead-letter topic as messages like any other; the subscription ``KEEPER``
of that topic knows which of them are still there. What is sent back or thrown away is
acknowledged on it, and what is sent back goes through the inbox in the same transaction.

A dead-letter topic may serve several subscriptions: each sees its own letters only. What a
subscription left behind, when it was deleted or given another dead-letter topic, is found
where it lies, if one says where.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import trio

from escapement.broker.log.amendments import Bools
from escapement.broker.log.logreader import LogReader
from escapement.broker.looking.passed import with_passed
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription import deadletter
from escapement.broker.subscription.deadletter import KEEPER
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.topic.topic import Topic
from escapement.errors import NotFound, StorageUnavailable
from escapement.message import Int64s, MessageBatch
from escapement.names import TopicName
from escapement.storage.blocking import Run
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.lane import State
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex, Key
from escapement.storage.letters.letter import Letter
from escapement.storage.offsets import OffsetSet

# Keys looked at in one step, and payloads fetched in one.
_STEP_MESSAGES: Final = 1_024
_STEP_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Some dead letters, in the order in which they died; columns of equal height."""

    due_ms: Int64s  # when they came into the dead-letter topic
    offsets: Int64s  # their place in it
    batch: MessageBatch
    origins: Sequence[dict[str, Any]]

    def pick(self, at: Int64s) -> Page:
        """Those at these positions."""
        origins = [self.origins[row] for row in at.tolist()]
        return Page(self.due_ms[at], self.offsets[at], self.batch.take(at), origins)


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose letters are meant."""

    topic: TopicName
    subscription: str
    # The dead-letter topic; None: the one of the subscription, which there must be.
    lie_in: TopicName | None = None

    def __str__(self) -> str:
        return f"{self.topic.full} {self.subscription}"


@dataclass(frozen=True, slots=True)
class _Grave:
    """Where the dead letters of one subscription lie."""

    whose: Whose
    topic: Topic | None  # None: nothing was ever buried
    keeper: SharedSubscription | None

    @property
    def is_there(self) -> bool:
        """Whether its keeper is the one that there is: not deleted, with the topic or alone, nor
        begun again by a seek, after which another has what this one would end."""
        return (
            self.topic is not None
            and self.keeper is not None
            and self.topic.subscription(KEEPER) is self.keeper
        )


class DeadLetters:
    """See the module's docstring."""

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
        """The first ``count`` of them. Raises ``NotFound``."""
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
        """How many there are, in steps of about ``most``; where to go on, if any may be left.

        Raises:
          NotFound: if there is no such subscription.
        """
        counted = 0
        async with aclosing(self._pages(self._grave(whose), only, after)) as found:
            async for page in found:
                counted += len(page.offsets)
                if counted >= most:
                    return counted, Key(int(page.due_ms[-1]), int(page.offsets[-1])).successor()
        return counted, None

    async def show(self, whose: Whose, offset: int) -> Page:
        """One of them, by its place in the dead-letter topic. Raises ``NotFound``."""
        grave = self._grave(whose)
        if (
            grave.topic is not None
            and grave.keeper is not None
            and 0 <= offset < grave.topic.next_offset
        ):
            offsets, moves = np.array([offset]), grave.topic.amendments.moves
            found, _ = await self._log.published(grave.topic.id, offsets, moves, 0)
            due_ms = moves.current(found.offsets, found.due_ms)
            page = self._mine(grave, due_ms, found.offsets, found.batch)
            if len(page.offsets):
                return page
        raise NotFound(f"{whose} has no dead letter at offset {offset}")

    async def redrive(self, whose: Whose, only: Int64s | None, most: int) -> int:
        """Send up to ``most`` back to where they came from; durable when it returns.

        Raises:
          NotFound: if there is no such subscription, or no such topic.
          StorageUnavailable: if the database takes nothing now.
        """
        self._registry.topic_record(whose.topic)  # what they go back to

        def letters(grave: _Grave, page: Page) -> Callable[[Int64s], Sequence[Letter]]:
            assert grave.keeper is not None
            source = f"redrive/{grave.keeper.record.id}"
            back = deadletter.restored(page.batch)

            def written(fresh: Int64s) -> Sequence[Letter]:
                at = np.flatnonzero(np.isin(page.offsets, fresh))
                return deadletter.letters(whose.topic, source, back.take(at), page.offsets[at])

            return written

        return await self._end(self._grave(whose), only, most, letters)

    async def purge(self, whose: Whose, only: Int64s | None, most: int) -> int:
        """Throw up to ``most`` of them away; durable when it returns. Raises as ``redrive``."""
        return await self._end(self._grave(whose), only, most, lambda grave, page: lambda fresh: ())

    def _grave(self, whose: Whose) -> _Grave:
        lie_in = whose.lie_in
        if lie_in is None:
            origin = self._registry.topic(whose.topic)
            record = self._registry.subscription_record(origin, whose.subscription)
            lie_in = deadletter.target(whose.topic, whose.subscription, record.policy)
            if lie_in.full not in self._registry.topics:
                return _Grave(whose, None, None)
        found = self._registry.topic(lie_in)
        return _Grave(whose, found, found.shared.get(KEEPER))

    async def _end(
        self,
        grave: _Grave,
        only: Int64s | None,
        most: int,
        letters: Callable[[_Grave, Page], Callable[[Int64s], Sequence[Letter]]],
    ) -> int:
        ended = 0
        async with aclosing(self._pages(grave, only)) as found:
            async for page in found:
                assert grave.keeper is not None
                page = page.pick(np.arange(min(most - ended, len(page.offsets))))
                if self._pipeline.state is not State.UP:
                    raise StorageUnavailable("dead letters cannot be moved now; try again later")
                ended += await self._end_page(grave.keeper, page, letters(grave, page))
                if ended >= most:
                    break
        return ended

    async def _end_page(
        self,
        keeper: SharedSubscription,
        page: Page,
        letters: Callable[[Int64s], Sequence[Letter]],
    ) -> int:
        durable = trio.Event()
        ended = keeper.acknowledge(page.offsets, lambda count: durable.set(), letters)
        await durable.wait()
        return ended

    async def _pages(
        self, grave: _Grave, only: Int64s | None, at: Key = KEY_MIN
    ) -> AsyncGenerator[Page, None]:
        """What is there, in steps; each is looked up when it is asked for.

        It ends where the keeper is deleted, or sought, meanwhile.
        """
        if grave.topic is None or not grave.is_there:
            return
        end = grave.topic.next_offset  # what comes meanwhile is for the next to look
        begin, moves = at, grave.topic.amendments.moves
        met = OffsetSet()  # what is moved may be met again
        while at < KEY_MAX:  # a letter that was moved is here before its new time too
            plan = self._index.plan(grave.topic.id, at, KEY_MAX, _STEP_MESSAGES)
            due_ms, offsets = plan.read() if plan.in_memory else await self._run(plan.read)
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
        assert grave.topic is not None
        assert grave.keeper is not None
        # What was ended while the step before was waited for may have left the index.
        here = _here(grave.topic, grave.keeper, due_ms, offsets)
        due_ms, offsets = due_ms[here], offsets[here]
        fetch = self._index.fetch(grave.topic.id, due_ms, offsets)
        batch = fetch.read() if fetch.in_memory else await self._run(fetch.read)
        return self._mine(grave, due_ms, offsets, batch)

    def _mine(self, grave: _Grave, due_ms: Int64s, offsets: Int64s, batch: MessageBatch) -> Page:
        """Those that are still there, from the subscription they are asked for."""
        assert grave.topic is not None
        assert grave.keeper is not None
        origins = deadletter.origins(batch)
        theirs = {"topic": grave.whose.topic.full, "subscription": grave.whose.subscription}
        mine = np.array([theirs.items() <= origin.items() for origin in origins], bool)
        at = np.flatnonzero(mine & _here(grave.topic, grave.keeper, due_ms, offsets))
        return Page(due_ms, offsets, batch, origins).pick(at)


def _here(topic: Topic, keeper: SharedSubscription, due_ms: Int64s, offsets: Int64s) -> Bools:
    """Which of these keys are letters that the keeper has: each has one that counts; bool[n]."""
    here = ~keeper.acked.contains(offsets)
    uncancelled = topic.amendments.uncancelled(offsets)
    if uncancelled is not None:
        here &= uncancelled | keeper.holds(offsets)
    stale = topic.amendments.moves.stale(due_ms, offsets)
    return here if stale is None else here & ~stale
