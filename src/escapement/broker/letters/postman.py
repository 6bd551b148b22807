"""Carries letters from the inbox into the logs of their targets.

One task. It looks into the inbox at a modest interval, for what others wrote, and at once
when this broker has written letters itself. The letters of one mailbox become one append,
which goes the road of every publish, and whose transaction takes the letters out of the
inbox: each is moved exactly once, in the order of its mailbox. One step of a mailbox is
under way at a time, and all steps of a round together are bounded in bytes.

What cannot be moved is never lost and holds up nobody else:

- A mailbox is *blocked* while its topic does not exist and may not be created, or while
  its namespace refuses the times that a letter has. It keeps its order, so the letters
  behind wait too. ``blocked`` says why; every round tries again. So it is with whatever
  else refuses its letters, but that it waits longer each time, up to a minute.
- A letter that can never be moved (it does not decode, its time lies too far ahead) is
  *held*, with the reason; those behind it go on.
- When a topic is deleted its letters go with it.

Behind a mailbox's own letters come those that jobs have staged for it (storage/letters/parcel.py).
Nobody has been promised when these are moved, so they do what producers do: they wait while
the backlog of the topic has met its quota, and keep to its publish rate. A mailbox's own
letters, whose cause is durable, do not wait for them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final, TypeVar

import trio

from escapement.broker.letters.carriage import Load, Submitted
from escapement.broker.letters.opening import Found, open_steps
from escapement.broker.letters.refusals import Refusals
from escapement.broker.limits import BrokerLimits
from escapement.broker.publishing.publishing import Publishing
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import (
    Busy,
    DelaysDisabled,
    EscapementError,
    InvalidRequest,
    LetterDamaged,
    NotFound,
    ShuttingDown,
    StorageError,
    StorageUnavailable,
)
from escapement.names import TopicName
from escapement.storage.blocking import Run
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.engine.base import Connection, Engine, TransactionAborted
from escapement.storage.letters import inbox, job, parcel
from escapement.storage.letters.inbox import Mailbox, Waiting
from escapement.storage.letters.job import JobState

T = TypeVar("T")

_logger = logging.getLogger(__name__)

# Mailboxes of one round: their letters share group commits.
_ROUND_MAILBOXES: Final = 256
# Steps that are moved before own letters, and whoever discards some, have their turn.
_STEPS_AT_ONCE: Final = 16
# ... of them in memory: one that is read while one is committed, and some that wait for that, as
# another topic's group may come between.
_STEPS_AHEAD: Final = 5
# So long a publish rate is waited for with a letter in hand, where no other mailbox waits behind:
# given up, it would have to be read again.
_WAIT_IN_HAND_MS: Final = 100
# The shortest pause between two rounds that moved nothing.
_SHORTEST_S: Final = 0.01
# Reasons that are remembered; there may be any number of mailboxes.
_MAX_BLOCKED: Final = 100


class Postman:
    """See the module's docstring."""

    def __init__(
        self,
        engine: Engine,
        registry: Registry,
        pipeline: CommitPipeline,
        publishing: Publishing,
        clock: Clock,
        run: Run,
        limits: BrokerLimits,
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._pipeline = pipeline
        self._publishing = publishing
        self._clock = clock
        self._run = run
        self._limits = limits
        self._stopping = False
        self._wake = trio.Event()
        self._moving = trio.Lock()  # held from reading letters to their commit
        self._connection: Connection | None = None
        self.moved = 0  # letters, since the broker started
        self.blocked: dict[str, str] = {}  # target -> why its mailbox waits
        self._refusals = Refusals()  # of mailboxes by target, and of what jobs have there

    # -- for others ------------------------------------------------------------

    def wake(self) -> None:
        """There are letters: do not wait for the interval."""
        self._wake.set()

    async def waiting(self, limit: int) -> list[Waiting]:
        """What waits in the inbox, by target."""
        return await self._pipeline.transact(lambda connection: inbox.waiting(connection, limit))

    async def jobs(self, limit: int) -> list[JobState]:
        """The newest bulk writes, and how far they are. Looked up beside the commits."""
        return await self._run(self._jobs_now, limit)

    async def discard(self, target: str) -> int:
        """Delete all letters that wait for a target; how many there were."""
        async with self._moving:
            count = await self._pipeline.transact(
                lambda connection: inbox.close(connection, target)
            )
        self.blocked.pop(target, None)
        return count

    def stop(self) -> None:
        """Begin nothing new; what is left waits for the next start."""
        self._stopping = True

    def close(self) -> None:
        """Give up the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- the task --------------------------------------------------------------

    async def run(self) -> None:
        """Carry letters for ever."""
        failing = False
        while True:
            self._wake = trio.Event()  # before looking: what comes later wakes us
            try:
                while await self._round():
                    pass
            except (StorageUnavailable, TransactionAborted, Busy, ShuttingDown) as error:
                # Said once: an outage may be long.
                _logger.log(
                    logging.DEBUG if failing else logging.WARNING, "letters wait: %s", error
                )
                failing = True
            else:
                failing = False
            now_s = trio.current_time()
            rest_s = max(self._refusals.next_s(now_s) - now_s, _SHORTEST_S)
            with trio.move_on_after(min(self._limits.inbox_poll_s, rest_s)):
                await self._wake.wait()

    async def _round(self) -> bool:
        """One step of every mailbox; whether there may be more to do."""
        blocked: dict[str, str] = {}
        progress = False
        after_id = 0
        seen: set[str] = set()
        while page := await self._read(inbox.occupied, after_id, _ROUND_MAILBOXES):
            after_id = page[-1].id
            seen.update(whom for box in page for whom in (box.target, _jobs_for(box.target)))
            # The topic first, then its letters: if it is deleted and made again between the
            # two, its mailbox is another one, and the letters of the old one are not read.
            topics = {box: await self._topic(box, blocked) for box in page}
            left = [(box, topic) for box, topic in topics.items() if topic is not None]
            while left and not self._stopping:
                boxes = [(box.id, self._may_take_jobs(box, blocked)) for box, _ in left]
                async with self._moving:
                    sizes = (self._limits.inbox_step_bytes, self._limits.inbox_round_bytes)
                    found = await self._read(open_steps, left, inbox.read_steps, boxes, *sizes)
                    progress = await self._carry(found, blocked) or progress
                left = left[len(found) :]
        self.blocked = blocked
        self._refusals.keep(seen)
        return progress and not self._stopping

    async def _topic(self, mailbox: Mailbox, blocked: dict[str, str]) -> Topic | None:
        """The topic of a mailbox, created if need be; None if it takes nothing now."""
        if trio.current_time() < self._refusals.until_s(mailbox.target):
            _block(blocked, mailbox.target, self._refusals.reasons[mailbox.target])
            return None
        try:
            return await self._registry.ensure_topic(TopicName.parse(mailbox.target))
        except (StorageError, Busy, ShuttingDown):
            raise
        except NotFound as error:
            _block(blocked, mailbox.target, str(error))
        except EscapementError as error:
            self._refused(mailbox.target, error, blocked)
        return None

    def _may_take_jobs(self, mailbox: Mailbox, blocked: dict[str, str]) -> bool:
        whom = _jobs_for(mailbox.target)
        if trio.current_time() >= self._refusals.until_s(whom):
            return True
        _block(blocked, mailbox.target, self._refusals.reasons[whom])
        return False

    def _refused(
        self, target: str, error: EscapementError, blocked: dict[str, str], whom: str = ""
    ) -> None:
        """Something that nobody here knows refuses a mailbox's letters: they are kept."""
        if self._refusals.refused(whom or target, str(error), trio.current_time()):
            _logger.warning("letters for %s wait: %s", target, error)
        _block(blocked, target, str(error))

    async def _carry(self, found: list[Found], blocked: dict[str, str]) -> bool:
        """Move these letters, and for a while what jobs have behind them.

        While steps are being committed the next is read and handed in behind them, so that the
        database never waits for us. A step that fails takes those behind it along.
        """
        progress = False
        steps = deque([(found, await self._submit(found, blocked, None))])
        left = _STEPS_AT_ONCE - 1
        try:
            while steps:
                while left and len(steps) < _STEPS_AHEAD:
                    found, last = steps[-1]
                    ahead = await self._read_ahead(found, last)
                    if ahead:
                        steps.append((ahead, await self._submit(ahead, blocked, last)))
                    left = left - 1 if ahead else 0
                found, under_way = steps[0]
                await under_way.settled()
                steps.popleft()
                progress = self._moved(under_way, blocked) or progress
                progress = await self._settle(found) or progress
        except BaseException:
            for _, under_way in steps:
                await under_way.ended()
            raise
        return progress

    async def _read_ahead(self, found: list[Found], under_way: Submitted) -> list[Found]:
        """What comes behind full steps of jobs that are under way as a whole."""
        step_bytes = self._limits.inbox_step_bytes
        whole = {id for id, load in under_way.going.items() if load.whole}
        full = [one for one in found if one.topic.id in whole and one.step.is_full(step_bytes)]
        if not full or self._stopping:
            return []
        places = [(one.box.id, one.step.last) for one in full]
        whose = [(one.box, one.topic) for one in full]
        return await self._read(open_steps, whose, inbox.read_ahead, places, step_bytes)

    async def _settle(self, found: Sequence[Found]) -> bool:
        """Note what jobs have nothing left to be moved; whether there was any."""
        emptied = [id for one in found for id in one.step.emptied]
        if emptied:
            dialect = self._engine.dialect
            await self._pipeline.transact(
                lambda connection: parcel.settle(dialect, connection, emptied)
            )
        return bool(emptied)

    async def _submit(
        self, found: Sequence[Found], blocked: dict[str, str], before: Submitted | None
    ) -> Submitted:
        """Hand letters to the commit pipeline, to be appended to their topics' logs.

        Args:
          before: what is under way of the letters before these, without which they do not go.
        """
        held: list[tuple[int, EscapementError]] = []
        alone = len(found) == 1
        loads = [await self._admit(one, held, blocked, alone) for one in found]
        for id, error in held:
            _logger.error("letter %d of the inbox is held: %s", id, error)
            await self._pipeline.transact(
                lambda connection, id=id, why=str(error): inbox.hold(connection, id, why)  # type: ignore[misc]
            )
        await self._publishing.room()
        under_way = Submitted(len(held))
        for load in loads:
            # It may have been deleted, or be about to be, since its letters were read.
            there = self._registry.active.get(load.topic.id) is load.topic
            alone = before is not None and load.topic.id not in before.going
            if load.ids and there and not load.topic.deleting and not alone:
                append = under_way.append(load)
                try:
                    self._pipeline.submit(append)
                except EscapementError as error:
                    append.fail(error)
        return under_way

    def _moved(self, under_way: Submitted, blocked: dict[str, str]) -> bool:
        """All of these have ended; whether anything changed."""
        for load, refusal in under_way.refused:
            self._refused(load.topic.name.full, refusal, blocked, _whom(load))
        for load in under_way.moved_to:
            self._refusals.over(_whom(load))
        self.moved += under_way.moved
        return bool(under_way.moved or under_way.held)

    async def _admit(
        self,
        found: Found,
        held: list[tuple[int, EscapementError]],
        blocked: dict[str, str],
        alone: bool,
    ) -> Load:
        """What of these letters the topic takes; the others are held, or wait."""
        topic, of_jobs = found.topic, found.step.of_jobs
        load = Load(topic, of_jobs)
        for letter in found.letters:
            if isinstance(letter.content, LetterDamaged):
                held.append((letter.id, letter.content))
                continue
            batch, times, body = letter.content
            if batch.groups is not None:
                held.append((letter.id, InvalidRequest("a letter cannot belong to a group")))
                continue
            try:
                self._publishing.check_times(topic, times)
                if of_jobs and not await self._has_turn(topic, len(batch), blocked, alone):
                    break
            except DelaysDisabled as error:
                _block(blocked, topic.name.full, str(error))
                break
            except InvalidRequest as error:
                held.append((letter.id, error))
                continue
            except EscapementError as error:
                self._refused(topic.name.full, error, blocked, _whom(load))
                break
            load.ids.append(letter.id)
            if letter.advance is not None:
                load.advances[letter.advance.parcel_id] = letter.advance
            load.batches.append(batch)
            load.bodies.append(body)
            load.times.append(times)
        load.whole = len(load.ids) == len(found.letters)
        return load

    async def _has_turn(
        self, topic: Topic, count: int, blocked: dict[str, str], alone: bool
    ) -> bool:
        """Whether so many messages of a job may be published now; else it is waited."""
        await self._publishing.weigh(topic)
        wait_ms = self._publishing.wait_ms(topic, count)
        while alone and 0 < wait_ms <= _WAIT_IN_HAND_MS:
            await trio.sleep(wait_ms / 1000)
            wait_ms = self._publishing.wait_ms(topic, count)
        if wait_ms:
            why, target = "the topic's maximum publish rate is met", topic.name.full
            until_s = trio.current_time() + wait_ms / 1000
            self._refusals.rest(_jobs_for(target), why, until_s)
            _block(blocked, target, why)
        return not wait_ms

    def _jobs_now(self, limit: int) -> list[JobState]:
        with closing(self._engine.connect()) as connection:
            return job.states(connection, limit)

    async def _read(self, read: Callable[..., T], *arguments: object) -> T:
        return await self._run(self._read_now, read, *arguments)

    def _read_now(self, read: Callable[..., T], *arguments: object) -> T:
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            return read(self._connection, *arguments)
        except BaseException:
            self.close()
            raise


def _jobs_for(target: str) -> str:
    """The name under which jobs for a topic are refused."""
    return f"jobs for {target}"


def _whom(load: Load) -> str:
    target = load.topic.name.full
    return _jobs_for(target) if load.of_jobs else target


def _block(blocked: dict[str, str], target: str, why: str) -> None:
    if len(blocked) < _MAX_BLOCKED:
        blocked[target] = why
