"""One run: days of traffic and faults, then health until all is done, then the check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import trio
import trio.testing

from escapement.errors import EscapementError, NotFound
from histories.checker import violations
from histories.recording import list_dead_letters
from histories.storing import unfinished
from simulation.application_troubles import ApplicationTroubles
from simulation.clocks import HOUR_S, stretched
from simulation.consuming import EXCLUSIVE, KINDS, PERMITS
from simulation.features.choosing import features_of, needs_application
from simulation.features.feature import (
    BACKOFF,
    KEPT,
    Feature,
    Policies,
    Topics,
    subscribers_of,
)
from simulation.inspection import findings, unbalanced
from simulation.memory import over_bounds
from simulation.operations import Amender, Publisher
from simulation.operator import Operator
from simulation.pausing import pausable
from simulation.reading import Reader
from simulation.report import Report, report_of
from simulation.troubles import Troubles
from simulation.world import ACK_WAIT_MS, LIMITS, World, simulated_world
from support.database.servers import private_server
from support.memory_directory import memory_directory

DAYS: Final = 30
PLAIN: Final = "plain"
KEYED: Final = "keyed"
WITH_DEAD_LETTERS: Final = "d"
MAX_DELIVERIES: Final = 3
# The database of the application.
_SHOP: Final = "shop"
# A broker sends a message within this time after it has decided to.
SENDING_S: Final = 2.0
_POLICIES: Final[Policies] = {
    WITH_DEAD_LETTERS: {**BACKOFF, "max_deliveries": MAX_DELIVERIES},
    "k": {**BACKOFF, "order": "key"},
}
_TOPICS: Final = {
    PLAIN: {"a": "shared", "d": "shared", "o": "log"},
    KEYED: {"k": "key", "s": "shared"},
}
# Consumers of each subscription.
CONSUMERS: Final = 2
_MEAN_S: Final = 32 * HOUR_S
# Healthy time until all messages must be acknowledged: longer than two leases and some retries.
_DRAIN_DAYS: Final = 6
_MOST_DAYS: Final = 60


def run(seed: int, days: float = DAYS) -> Report:
    """Run one seed, and check its history."""
    with ExitStack() as stack:
        application = ""
        if needs_application(seed):
            server = stack.enter_context(private_server(directory=memory_directory()))
            server.admin(f"CREATE DATABASE {_SHOP}")
            application = server.url(_SHOP)
        stack.enter_context(stretched())
        stack.enter_context(pausable())
        clock = trio.testing.MockClock(autojump_threshold=0)
        return report_of(partial(_live, days, application), seed, clock)


async def _live(
    days: float, application: str, report: Report, root: Path, clock: trio.testing.MockClock
) -> None:
    async with simulated_world(report.seed, root, clock, application) as (world, nursery):
        history = world.history
        report.history = history
        history.max_deliveries = {WITH_DEAD_LETTERS: MAX_DELIVERIES}
        history.sending_s = SENDING_S
        history.expiry_s = ACK_WAIT_MS / 1000 - SENDING_S
        features = [feature(world) for feature in features_of(report.seed, world.bundles)]
        await _begin(world)
        await _set_up(world, _TOPICS, _POLICIES, {})
        subscribers = subscribers_of(world, _TOPICS, CONSUMERS)
        for feature in features:
            await feature.begin()
            await _set_up(world, feature.topics, feature.policies, feature.topic_policies)
            subscribers += feature.subscribers()
        amended = [*_TOPICS, *(name for one in features for name in one.amended)]
        amender = Amender(world, amended, _MEAN_S / 6)
        troubles = [Troubles(world, nursery)]
        if application:
            troubles.append(ApplicationTroubles(world, nursery))
        end_ms = history.now_ms() + int(days * 86_400_000)
        async with trio.open_nursery() as consuming:
            consuming.start_soon(_watch, world, features, report, consuming.cancel_scope)
            for subscriber in subscribers:
                consuming.start_soon(subscriber.run)
            for feature in features:
                consuming.start_soon(feature.consume)
            async with trio.open_nursery() as troubled:
                for trouble in troubles:
                    troubled.start_soon(trouble.run)
                troubled.start_soon(Operator(world).run)
                async with trio.open_nursery() as publishing:
                    for topic in _TOPICS:
                        publishing.start_soon(Publisher(world, topic, "named", _MEAN_S).run, end_ms)
                        publishing.start_soon(Publisher(world, topic, None, _MEAN_S).run, end_ms)
                    publishing.start_soon(amender.run, end_ms)
                    publishing.start_soon(Reader(world, [*_TOPICS]).run, end_ms)
                    for feature in features:
                        publishing.start_soon(feature.run, end_ms)
                troubled.cancel_scope.cancel()
            for trouble in troubles:
                trouble.heal()
            for feature in features:
                feature.heal()
            for subscriber in subscribers:
                subscriber.careful = True
            await _drain(world, features)
            report.violations += _violations(world, features, drained=True)
            report.violations += await unbalanced(world)
            consuming.cancel_scope.cancel()
        if not report.violations:
            report.violations += await findings(world)


async def _watch(
    world: World, features: Sequence[Feature], report: Report, scope: trio.CancelScope
) -> None:
    """End the run at the first violation, or if it takes far too long."""
    for _ in range(_MOST_DAYS):
        await trio.sleep(24 * HOUR_S)
        report.violations += _violations(world, features, drained=False)
        if report.violations:
            scope.cancel()
            return
    report.violations.append("4: the run hangs")
    scope.cancel()


def _violations(world: World, features: Sequence[Feature], *, drained: bool) -> list[str]:
    world.history.disk_failed = any(host.disk.failed for host in world.hosts)
    found = list(violations(world.history, drained=drained))
    for broker in (one for host in world.hosts for one in host.brokers):
        found += over_bounds(broker.services, LIMITS, CONSUMERS * PERMITS)
    for check in (feature.check for feature in features):
        if check is not None:
            found += check.violations(world.history)
            found += check.unfinished(world.history) if drained else ()
    return found


def _unfinished(world: World, features: Sequence[Feature]) -> Iterator[str]:
    """Yield what must still happen."""
    yield from unfinished(world.history)
    for feature in features:
        if feature.check is not None:
            yield from feature.check.unfinished(world.history)


async def _begin(world: World) -> None:
    """Let the log forget early."""
    async with world.connect(knows_all=True) as client:
        name = "public/default"
        await client.admin("namespaces.create", namespace=name)
        await client.admin("namespaces.update", namespace=name, policy={"retention_ms": "0s"})


async def _set_up(
    world: World, topics: Topics, policies: Policies, topic_policies: Policies
) -> None:
    """Create topics and their subscriptions, with the policies of both."""
    for topic, names in topics.items():
        consumed = {name: kind for name, kind in names.items() if kind != KEPT}
        assert not consumed.keys() & world.history.kinds.keys(), "names of subscriptions are unique"
        world.history.topics[topic] = list(consumed)
        world.history.kinds |= {
            name: "log" if kind == EXCLUSIVE else kind for name, kind in consumed.items()
        }
        async with world.connect(knows_all=True) as client:
            for name, kind in names.items():
                await client.admin(
                    "subscriptions.create",
                    topic=topic,
                    subscription=name,
                    kind=KINDS.get(kind, "shared"),
                    policy=dict(policies.get(name, BACKOFF)),
                )
            # Clients that do not know whether a message is stored may ask for days.
            policy = {"dedup_window_ms": "6d", **topic_policies.get(topic, {})}
            await client.admin("topics.update", topic=topic, policy=policy)


async def _drain(world: World, features: Sequence[Feature]) -> None:
    """Wait until every message is acknowledged, or for some days."""
    with trio.move_on_after(_DRAIN_DAYS * 24 * HOUR_S):
        while True:
            await trio.sleep(HOUR_S)
            await _list_dead_letters(world)
            for feature in features:
                await feature.look()
            if next(_unfinished(world, features), None) is None:
                break
    await trio.sleep(2 * HOUR_S)  # a delivery that breaks an invariant may still come


async def _list_dead_letters(world: World) -> None:
    """Note the dead letters of the subscription that has some."""
    try:
        topic = f"{PLAIN}-{WITH_DEAD_LETTERS}-DLQ"
        async with world.connect() as client:
            await list_dead_letters(
                world.history, client, PLAIN, WITH_DEAD_LETTERS, dead_letter_topic=topic
            )
    except EscapementError as error:
        if not (error.retryable or isinstance(error, NotFound)):
            raise
