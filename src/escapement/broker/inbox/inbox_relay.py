"""The inbox relay: moves inbox entries into the logs of their target topics.

An *inbox entry* is a batch of messages in the database that is to be published to a topic. An
*inbox target* is the full name of such a topic, which need not exist yet. The relay looks for
entries when this broker has written some, and whenever the inbox watch of the process
(broker/inbox/inbox_watch.py) has found some, of any process. In each *round* it reads a *step* of
every target: a bounded number of its entries. The step becomes one append, which takes the same way
as a publish. The append's transaction removes the entries from the inbox. So each entry is moved
exactly once, in the order of its target. A target has one step of its own entries in progress at a
time, and all steps that are read together are bounded in bytes.

Entries that cannot be moved are never lost, and they delay no other target:

- An inbox target is *blocked* while its topic does not exist and may not be created, or while
  its namespace refuses the time of an entry. Its entries keep their order, so the entries behind
  wait too. ``blocked`` has the reason. Every round tries again. After any other refusal the
  target is blocked too, but the pause before each retry doubles, up to a minute.
- An entry that can never be moved (it does not decode, or its time lies too far ahead) is *stuck*:
  it stays in the inbox, with the reason. The entries behind it are moved.
- When a topic is deleted, its inbox entries are deleted too.

An entry may have dedup keys. Messages whose keys the topic knows already are removed from the
append, as from a publish.

An entry may also have requests to cancel or reschedule earlier messages. The relay applies them to
the messages before them in the inbox (broker/inbox/amended_entries.py), and moves the messages. The
amender carries the requests out for messages of the topic (broker/inbox/amender.py).

Bulk jobs, such as Spark jobs, stage their entries in batches (storage/inbox/staged_batch.py). The
relay moves these after all other entries of their target, which are called its *own*. Bulk jobs
have no promise when their entries are moved. So these behave like producers: they wait while the
backlog of the topic has reached its quota, and keep to its publish rate. A target's own entries
wait for neither, because whatever caused them is durable already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import trio

from escapement.broker.inbox.amended_entries import begin
from escapement.broker.inbox.amender import Amender
from escapement.broker.inbox.decoded_entries import DecodedEntry, Found, open_steps
from escapement.broker.inbox.inbox_watch import InboxWatch
from escapement.broker.inbox.refusals import Refusals
from escapement.broker.inbox.relay_load import Load, Submitted
from escapement.broker.limits import BrokerLimits
from escapement.broker.outage import Outage
from escapement.broker.publishing.publishing import Publishing
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import (
    Busy,
    DelaysDisabled,
    EscapementError,
    InboxEntryDamaged,
    InvalidRequest,
    NotFound,
    ShuttingDown,
    StorageError,
    WrongBundle,
)
from escapement.event_log import EventLog
from escapement.names import TopicName
from escapement.storage.blocking import Run
from escapement.storage.catalog import catalog
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.engine.base import Connection
from escapement.storage.engine.connection_pool import ConnectionPool
from escapement.storage.inbox import inbox, job, staged_batch
from escapement.storage.inbox.amend_request import AmendRequests
from escapement.storage.inbox.entry import Content
from escapement.storage.inbox.inbox import InboxTarget, Waiting
from escapement.storage.inbox.job import JobState

T = TypeVar("T")

_log = EventLog(__name__)

# The inbox targets that are listed in one query.
_ROUND_TARGETS: Final = 256
# The most steps of bulk jobs before own entries, and requests to discard entries, have their turn.
_STEPS_AT_ONCE: Final = 16
# The most steps of bulk jobs in memory. One is read while one is committed. The others are
# submitted and wait, because commits of other topics may come in between and take longer.
_STEPS_AHEAD: Final = 5
# The longest wait for a topic's publish rate that keeps the entries in memory, if no other target
# waits behind them. If it would be longer, they are read again afterwards.
_WAIT_IN_HAND_MS: Final = 100
# The shortest pause after a round that moved nothing.
_SHORTEST_S: Final = 0.01
# The most reasons in ``blocked``. The number of inbox targets has no bound.
_MAX_BLOCKED: Final = 100


class InboxRelay:
    """The inbox relay of one broker."""

    def __init__(
        self,
        connections: ConnectionPool,
        watch: InboxWatch,
        registry: Registry,
        pipeline: CommitPipeline,
        publishing: Publishing,
        clock: Clock,
        run: Run,
        limits: BrokerLimits,
        amender: Amender,
        keep: Callable[[Topic], Awaitable[None]],
    ) -> None:
        """Keep the parts of the broker that the relay uses.

        Args:
          keep: ensures that a dead-letter topic has the subscription that keeps its messages.
        """
        self._watch = watch
        self._amender = amender
        self._keep = keep
        self._amending: frozenset[str] = frozenset()  # busy targets when the step was read
        self._registry = registry
        self._pipeline = pipeline
        self._publishing = publishing
        self._clock = clock
        self._run = run
        self._limits = limits
        self._stopping = False
        self._wake = trio.Event()
        self._moving = trio.Lock()  # held from reading entries to their commit
        self._connections = connections
        self.moved = 0  # number of entries moved since the broker started
        self.blocked: dict[str, str] = {}  # target -> why its entries wait, after the last round
        self._blocked: dict[str, str] = {}  # the same, collected by the current round
        self._refusals = Refusals()  # by target, and by ``_jobs_for`` a target

    # -- requests --------------------------------------------------------------

    def wake(self) -> None:
        """Look for inbox entries now, without waiting for the interval."""
        self._wake.set()

    async def waiting(self, limit: int) -> list[Waiting]:
        """Return how many inbox entries each target has, how many of them are stuck, and why.

        Args:
          limit: the most targets to return.
        """
        return await self._pipeline.transact(lambda connection: inbox.waiting(connection, limit))

    async def jobs(self, limit: int) -> list[JobState]:
        """Return the newest bulk jobs and their progress, at most ``limit``.

        Reads with a connection of its own, and so does not wait for commits.
        """
        return await self._run(self._jobs_now, limit)

    async def discard(self, target: str) -> int:
        """Delete all inbox entries for a topic. Return how many there were.

        Args:
          target: the full name of the topic, which need not exist.

        Raises:
          WrongBundle: if the topic belongs to another bundle, whose relay may be moving entries.
        """
        bundle = self._registry.bundle

        def close(connection: Connection) -> int:
            names = [] if target in self._registry.topics else _valid([target])
            if names:
                catalog.check_places(connection, bundle.dialect, names, bundle.id)
            return inbox.close(connection, target, bundle.id)

        async with self._moving:
            count = await self._pipeline.transact(close)
        self.blocked.pop(target, None)
        return count

    def stop(self) -> None:
        """Start no new step. The remaining entries wait for the next start of the broker."""
        self._stopping = True

    # -- the task --------------------------------------------------------------

    async def run(self) -> None:
        """Move inbox entries into topics, forever."""
        outage = Outage("inbox.waiting", "inbox entries wait")
        with self._watch.telling(self._look):
            while True:
                self._wake = trio.Event()  # entries that come during the round cause another one
                with outage:
                    while await self._round():
                        pass
                now_s = trio.current_time()
                rest_s = max(self._refusals.next_s(now_s) - now_s, _SHORTEST_S)
                with trio.move_on_after(rest_s):
                    await self._wake.wait()

    def _look(self, is_occupied: bool) -> None:
        if is_occupied or self.blocked:  # if not occupied, ``blocked`` is out of date
            self._wake.set()

    async def _round(self) -> bool:
        """Move at least one step of every inbox target. Return whether to begin another round."""
        self._blocked = {}
        progress = False
        after_id = 0
        seen: set[str] = set()
        while page := await self._read(inbox.occupied, after_id, _ROUND_TARGETS):
            after_id = page[-1].id
            if not self._registry.bundle.is_only:
                page = await self._own(page)
            seen.update(one.target for one in page)
            seen.update(_jobs_for(one.target) for one in page)
            # Find the topic before its entries are read. If it is deleted and created again in
            # between, its inbox target has another id, and the old entries are not read.
            topics = {one: await self._topic(one) for one in page}
            left = [(one, topic) for one, topic in topics.items() if topic is not None]
            while left and not self._stopping:
                targets = [(one.id, self._may_take_jobs(one)) for one, _ in left]
                async with self._moving:
                    self._amending = frozenset(self._amender.busy)
                    sizes = (self._limits.inbox_step_bytes, self._limits.inbox_round_bytes)
                    found = await self._read(open_steps, left, inbox.read_steps, targets, *sizes)
                    progress = await self._carry(found) or progress
                left = left[len(found) :]
        self.blocked = self._blocked
        self._refusals.keep(seen)
        return progress and not self._stopping

    async def _own(self, page: list[InboxTarget]) -> list[InboxTarget]:
        """Return those targets whose topics, or names without a topic, belong to the bundle.

        Also ensure that their dead-letter topics have the subscription that keeps the messages,
        because the owner of another bundle cannot do so.
        """
        registry, bundle = self._registry, self._registry.bundle
        own = [one for one in page if one.target in registry.topics or bundle.has_name(one.target)]
        doubtful = _valid(one.target for one in own if one.target not in registry.topics)
        foreign = await self._read(catalog.elsewhere, doubtful, bundle.id) if doubtful else {}
        own = [one for one in own if one.target not in foreign]
        dead = await self._read(inbox.with_dead_letters, [one.id for one in own]) if own else set()
        for one in own:
            if one.id in dead and (topic := await self._topic(one)) is not None:
                await self._keep(topic)
        return own

    async def _topic(self, inbox_target: InboxTarget) -> Topic | None:
        """Return the topic of an inbox target, created if necessary; None if it is blocked."""
        if (failure := self._amender.refused.pop(inbox_target.target, None)) is not None:
            self._refused(inbox_target.target, failure)
        if trio.current_time() < self._refusals.until_s(inbox_target.target):
            self._block(inbox_target.target, self._refusals.reasons[inbox_target.target])
            return None
        try:
            return await self._registry.ensure_topic(TopicName.parse(inbox_target.target))
        except (StorageError, Busy, ShuttingDown):
            raise
        except WrongBundle:
            pass  # its own relay moves the entries: the bundle was added after this broker's start
        except NotFound as error:
            self._block(inbox_target.target, str(error))
        except EscapementError as error:
            self._refused(inbox_target.target, error)
        return None

    def _may_take_jobs(self, inbox_target: InboxTarget) -> bool:
        whom = _jobs_for(inbox_target.target)
        if trio.current_time() >= self._refusals.until_s(whom):
            return True
        self._block(inbox_target.target, self._refusals.reasons[whom])
        return False

    def _refused(self, target: str, error: EscapementError, whom: str = "") -> None:
        """Block a target after an unforeseen refusal, with a back-off.

        Args:
          whom: the name for the back-off, if it is not ``target``.
        """
        if self._refusals.refused(whom or target, str(error), trio.current_time()):
            _log.warning(
                "inbox.target_waiting", "inbox entries for %s wait: %s", target, error, topic=target
            )
        self._block(target, str(error))

    def _block(self, target: str, why: str) -> None:
        if len(self._blocked) < _MAX_BLOCKED:
            self._blocked[target] = why

    async def _carry(self, found: list[Found]) -> bool:
        """Move a step of each target in ``found``, and then further steps of their bulk jobs.

        Return whether entries were moved or marked as stuck, or staged batches finished. While
        steps are being committed, the next one is read and submitted behind them, so that the
        database never idles. If a step fails, the steps behind it fail too.
        """
        progress = False
        steps = deque([(found, await self._submit(found, None))])
        left = _STEPS_AT_ONCE - 1
        try:
            while steps:
                while left and len(steps) < _STEPS_AHEAD:
                    found, last = steps[-1]
                    ahead = await self._read_ahead(found, last)
                    if ahead:
                        steps.append((ahead, await self._submit(ahead, last)))
                    left = left - 1 if ahead else 0
                found, under_way = steps[0]
                await under_way.settled()
                steps.popleft()
                progress = self._moved(under_way) or progress
                progress = await self._settle(found) or progress
        except BaseException:
            for _, under_way in steps:
                await under_way.ended()
            raise
        return progress

    async def _read_ahead(self, found: list[Found], under_way: Submitted) -> list[Found]:
        """Read the next step of each bulk job whose last step was full and submitted as a whole.

        Args:
          found: the last steps.
          under_way: the appends of these steps.
        """
        step_bytes = self._limits.inbox_step_bytes
        whole = {id for id, load in under_way.going.items() if load.whole}
        full = [one for one in found if one.topic.id in whole and one.step.is_full(step_bytes)]
        if not full or self._stopping:
            return []
        positions = [(one.inbox_target.id, one.step.last) for one in full]
        whose = [(one.inbox_target, one.topic) for one in full]
        return await self._read(open_steps, whose, inbox.read_ahead, positions, step_bytes)

    async def _settle(self, found: Sequence[Found]) -> bool:
        """Record in the database which staged batches have no entry left to be moved.

        Return whether there were any.
        """
        emptied = [id for one in found for id in one.step.emptied]
        if emptied:
            dialect = self._connections.engine.dialect
            await self._pipeline.transact(
                lambda connection: staged_batch.settle(
                    dialect, connection, emptied, self._registry.bundle.id
                )
            )
        return bool(emptied)

    async def _submit(self, found: Sequence[Found], before: Submitted | None) -> Submitted:
        """Submit the entries of some steps to the commit pipeline, as appends to topics' logs.

        Args:
          before: the appends of the previous step. The entries of a topic are submitted only if
            that step's append to the topic is in progress or has succeeded.
        """
        stuck: list[tuple[int, EscapementError]] = []
        alone = len(found) == 1
        loads = [await self._admit(one, stuck, alone) for one in found]
        for id, error in stuck:
            _log.error("inbox.entry_stuck", "inbox entry %d is stuck: %s", id, error, entry=id)
            await self._pipeline.transact(
                lambda connection, id=id, why=str(error): inbox.mark_stuck(connection, id, why)  # type: ignore[misc]
            )
        await self._publishing.room()
        under_way = Submitted(len(stuck))
        for load in loads:
            # A run that was going on when the entries were read may have deleted them since.
            if load.requests and load.topic.name.full not in self._amending:
                self._amender.start(load.topic, load.requests)
            # Since its entries were read, a topic may have been deleted, or its deletion begun.
            there = self._registry.active.get(load.topic.id) is load.topic
            alone = before is not None and load.topic.id not in before.going
            if not load.ids or not there or load.topic.deleting or alone:
                continue
            publication = under_way.publication(load)
            try:
                self._publishing.sort_out(load.topic, publication)
            except EscapementError as error:
                under_way.refused.append((load, error))
                continue
            append = under_way.append(load, publication)
            try:
                self._pipeline.submit(append)
            except EscapementError as error:
                publication.failed(error)
            else:
                publication.queued()
        return under_way

    def _moved(self, under_way: Submitted) -> bool:
        """Note the outcomes of ended appends.

        Return whether entries were moved or marked as stuck.
        """
        for load, refusal in under_way.refused:
            self._refused(load.topic.name.full, refusal, _whom(load))
        for load in under_way.moved_to:
            self._refusals.over(_whom(load))
        self.moved += under_way.moved
        return bool(under_way.moved or under_way.stuck)

    async def _admit(
        self, found: Found, stuck: list[tuple[int, EscapementError]], alone: bool
    ) -> Load:
        """Return the entries of a step that its topic accepts. The others wait, or are stuck.

        Args:
          stuck: takes the id of each entry that can never be moved, with the reason.
          alone: whether no other target waits for this step.
        """
        topic, of_jobs = found.topic, found.step.of_jobs
        load, accepted = Load(topic, of_jobs), list[DecodedEntry]()
        for inbox_entry in found.inbox_entries:
            content = inbox_entry.content
            if isinstance(content, InboxEntryDamaged):
                stuck.append((inbox_entry.id, content))
                continue
            try:
                self._check(topic, content)
                count = len(content.batch) if isinstance(content, Content) else 0
                if of_jobs and not await self._has_turn(topic, count, alone):
                    break
            except DelaysDisabled as error:
                self._block(topic.name.full, str(error))
                break
            except InvalidRequest as error:
                stuck.append((inbox_entry.id, error))
                continue
            except EscapementError as error:
                self._refused(topic.name.full, error, _whom(load))
                break
            accepted.append(inbox_entry)
        load.whole = len(accepted) == len(found.inbox_entries)
        for inbox_entry in await self._begin(topic, accepted):
            load.take(inbox_entry)
        return load

    async def _begin(self, topic: Topic, entries: list[DecodedEntry]) -> list[DecodedEntry]:
        """Begin the requests among the entries of a step. Return the entries that are left."""
        begun = begin(entries, topic.next_offset)
        if not begun.rewritten:
            return entries

        def write(connection: Connection) -> None:
            inbox.rewrite(connection, begun.rewritten)
            inbox.delete(connection, begun.emptied)

        await self._pipeline.transact(write)
        return begun.entries

    def _check(self, topic: Topic, content: Content | AmendRequests) -> None:
        """Check that a topic accepts an entry.

        Raises:
          DelaysDisabled: the namespace refuses its times.
          InvalidRequest: the entry can never be moved.
        """
        if isinstance(content, Content) and content.batch.groups is not None:
            raise InvalidRequest("an inbox entry cannot belong to a group")
        self._publishing.check_times(topic, content.times)

    async def _has_turn(self, topic: Topic, count: int, alone: bool) -> bool:
        """Return whether ``count`` messages of a bulk job may be published to a topic now.

        If not, all bulk jobs for the topic wait until its publish rate allows more messages.

        Args:
          alone: whether no other target waits meanwhile; a short wait then happens here.

        Raises:
          BacklogFull: if the topic's backlog has reached its quota.
        """
        await self._publishing.weigh(topic)
        wait_ms = self._publishing.wait_ms(topic, count)
        while alone and 0 < wait_ms <= _WAIT_IN_HAND_MS:
            await trio.sleep(wait_ms / 1000)
            wait_ms = self._publishing.wait_ms(topic, count)
        if wait_ms:
            why, target = "the topic's maximum publish rate is reached", topic.name.full
            until_s = trio.current_time() + wait_ms / 1000
            self._refusals.rest(_jobs_for(target), why, until_s)
            self._block(target, why)
        return not wait_ms

    def _jobs_now(self, limit: int) -> list[JobState]:
        with self._connections.use() as connection:
            return job.states(connection, limit)

    async def _read(self, read: Callable[..., T], *arguments: object) -> T:
        return await self._run(self._read_now, read, *arguments)

    def _read_now(self, read: Callable[..., T], *arguments: object) -> T:
        with self._connections.use() as connection:
            return read(connection, *arguments)


def _valid(targets: Iterable[str]) -> list[TopicName]:
    """Return the targets that are names of topics. Other programs may have written any text."""
    found: list[TopicName] = []
    for target in targets:
        with suppress(InvalidRequest):
            found.append(TopicName.parse(target))
    return found


def _jobs_for(target: str) -> str:
    """Return the name under which ``Refusals`` has the back-off of bulk jobs for a topic."""
    return f"jobs for {target}"


def _whom(load: Load) -> str:
    target = load.topic.name.full
    return _jobs_for(target) if load.of_jobs else target
