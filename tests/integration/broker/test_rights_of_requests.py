"""Each request of each role against a running broker, and what a lost right ends."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.access.pattern import Pattern
from escapement.access.rights import Need, Rights
from escapement.access.token import Token
from escapement.broker.access.access import USES_INTERVAL_S, Access
from escapement.broker.front.bootstrap import Bootstrap
from escapement.broker.session.outbound import Outbound
from escapement.errors import (
    AccessDenied,
    AlreadyExists,
    Conflict,
    EscapementError,
    LimitExceeded,
    NotFound,
    StorageError,
    Unauthenticated,
)
from escapement.names import full_name
from escapement.storage.bootstrap_request import BootstrapRequest
from escapement.storage.engine.base import Engine
from escapement.testing import arrived
from support.rights_table import rights_table
from support.roles import begin, connected, new_token
from support.verb_arguments import TAKEN

PAGE: Final = Path(__file__).parents[3] / "docs" / "reference" / "rights.md"
TABLE: Final = rights_table(PAGE.read_text())
# Roles: the patterns that they have grants for, with the actions.
ROLES: Final[dict[str, dict[str, list[str]]]] = {
    "nobody": {},
    "superuser": {"*": ["admin"]},
    "tenant-admin": {"public/*": ["admin"]},
    "other-tenant": {"a/*": ["admin"]},
    "tables": {"table://a/*": ["produce", "consume", "peek"]},
    "schedule-admin": {"public/default/again": ["admin"]},
    "schedule-producer": {"public/default/again": ["admin"], "t": ["produce"]},
    "one-topic": {"t": ["produce", "consume", "peek", "cancel"]},
    "two-grants": {"t": ["produce"], "public/default/u": ["produce"]},
    **{f"{one}-here": {"public/default/*": [one]} for one in ("produce", "consume", "peek")},
    **{f"{one}-here": {"public/default/*": [one]} for one in ("cancel", "admin")},
    **{f"{one}-all": {"*": [one]} for one in ("produce", "consume", "peek", "cancel")},
}
REQUESTS: Final[dict[str, dict[str, Any]]] = {
    **{name: {"topic": "t"} for name in TABLE if "." not in name},
    **{
        verb: {name: value for name, (value, _) in taken.items() if value is not None}
        for verb, taken in TAKEN.items()
    },
}


async def again(call: Callable[[], Awaitable[Any]]) -> None:
    """Repeat a call until it raises."""
    while True:
        await call()
        await trio.sleep(0.1)


async def ask(broker: escapement.Broker, name: str, arguments: dict[str, Any]) -> None:
    """Make a request. Any error but ``AccessDenied`` is as good as an answer."""
    try:
        match name:
            case "OpenProducer":
                await (await broker.producer("t")).aclose()
            case "Subscribe":
                async with broker.consumer("t", "s"):
                    pass
            case "Cancel":
                await broker.cancel([99], topic="t")
            case "Reschedule":
                await broker.reschedule([99], topic="t", delay="1h")
            case "Read":
                _ = [page async for page in broker.read("t")]
            case "Find":
                await broker.find("t", dedup="a")
            case _:
                await broker.admin(name, **arguments)
    except AccessDenied:
        raise
    except EscapementError:
        pass


def resource(words: str, given: dict[str, Any]) -> list[str]:
    """Return what the words of the page mean for a request; a naive model."""
    words = words.removeprefix("a part of ")
    if words == "the topic that `schedule` publishes to":
        return [full_name("t")]
    name = words.split("`")[1]
    if "`action` is" in words:
        when = " if " if given["action"] == "redrive" else " unless "
        return [full_name(given[name])] if when in words else []
    if "policy" in words or (words.endswith("if given") and name not in given):
        return []
    if words.endswith("or `*`") and name not in given:
        return ["*"]
    if name in ("*", "table://*"):
        return [name]
    if words.startswith("`namespace`/*"):
        return [given[name] + "/*"]
    if words.startswith("each of"):
        return [full_name(one) for one in given[name]]
    value = given[name]
    return [value if "*" in value else full_name(value)]


def is_allowed(role: str, name: str, given: dict[str, Any]) -> bool:
    """Return whether the page lets a role make a request; a naive model."""
    grants = {
        pattern if "*" in pattern else full_name(pattern): actions
        for pattern, actions in ROLES[role].items()
    }
    return all(
        any(
            {action, "admin"} & set(actions)
            and (
                fnmatchcase(one, pattern)
                or (words.startswith("a part of ") and fnmatchcase(pattern, one))
            )
            for pattern, actions in grants.items()
        )
        for action, words in TABLE[name]
        for one in resource(words, given)
    )


async def test_each_role_may_make_exactly_the_requests_that_the_page_of_rights_lists(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """O1: every verb and every command, with every role, on SQLite and on MariaDB."""
    assert TABLE.keys() == REQUESTS.keys()
    async with testing.start(engine=engine) as world, connected(world, await begin(world)) as root:
        denied = allowed = 0
        await root.admin(
            "schedules.create", schedule="public/default/again", topic="t", every_ms=1 << 40
        )
        for role, grants in ROLES.items():
            for pattern, actions in grants.items():
                await root.admin("grants.add", role=role, pattern=pattern, actions=actions)
            async with connected(world, await new_token(root, role)) as broker:
                for name, given in REQUESTS.items():
                    await root.admin("topics.create_many", topics=["t"], subscription="s")
                    expected = is_allowed(role, name, given)
                    with contextlib.ExitStack() as stack:
                        if not expected:
                            stack.enter_context(pytest.raises(AccessDenied, match=role))
                        await ask(broker, name, given)
                    denied, allowed = denied + (not expected), allowed + expected
                    assert broker.connected, (role, name)
        assert denied > 300
        assert allowed > 200


async def test_bulk_redrive_needs_the_right_to_produce_and_names_its_role(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O1, B13"""
    async with testing.start() as world, connected(world, await begin(world)) as root:
        await root.admin("topics.create_many", topics=["t"], subscription="s")
        await root.admin("topics.create_many", topics=["t-s-DLQ"], subscription="dead-letters")
        for role in ("produce", "cancel"):
            await root.admin("grants.add", role=role, pattern="t", actions=[role])
        async with connected(world, await new_token(root, "cancel")) as broker:
            with pytest.raises(AccessDenied, match="produce"):
                await broker.bulk.redrive("t", "s", everything=True)
            change = await broker.bulk.cancel("t", everything=True)
            assert change.role == "cancel"
            assert (await broker.bulk.stop("t", change.id)).has_ended
            with pytest.raises(AccessDenied, match="peek"):
                await broker.bulk.list()
        async with connected(world, await new_token(root, "produce")) as broker:
            assert (await broker.bulk.redrive("t", "s", everything=True)).role == "produce"
            with pytest.raises(AccessDenied, match="cancel"):
                await broker.bulk.redrive("t", "s", dead_letter_topic="t-s-DLQ", everything=True)


async def test_log_without_tokens_lets_everyone_do_everything_until_the_first_token(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O1: the first token ends all connections that have none."""
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("topics.create", topic="t")
        token = Token.new()
        with pytest.raises(Conflict, match="admin bootstrap"):
            await broker.admin("tokens.create", role="r", id=token.id, digest=token.digest)
        await begin(world)
        mock_clock.autojump_threshold = 0
        with pytest.raises(Unauthenticated, match="ESCAPEMENT_TOKEN"):
            await again(lambda: broker.admin("topics.list"))
        with pytest.raises(Unauthenticated, match="requires a token"):
            async with world.connect():
                pass


async def test_wrong_tokens_are_refused_with_what_to_do(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O1: missing, mistyped, unknown, of another secret."""
    async with testing.start() as world:
        token = await begin(world)
        for wrong in (Token.new(), Token(token.id, Token.new().secret)):
            with pytest.raises(Unauthenticated, match="does not know") as caught:
                async with connected(world, wrong):
                    pass
            assert wrong.secret not in str(caught.value)
            assert not caught.value.retryable
        with pytest.raises(Unauthenticated, match="mistyped"):
            world.connect(token=token.text[:-1])


async def test_revoked_token_ends_its_connections_at_once(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O1: producers and consumers fail with an error that is not retried."""
    mock_clock.autojump_threshold = 0
    async with testing.start() as world, connected(world, await begin(world)) as root:
        await root.admin("grants.add", role="r", pattern="*", actions=["admin"])
        token = await new_token(root, "r")
        async with connected(world, token) as broker:
            producer = await broker.producer("t")
            await producer.send(b"1")
            async with broker.consumer("t", "s", position="earliest") as inbox:
                began_s = trio.current_time()
                await root.admin("tokens.revoke", id=token.id)
                for call in (
                    lambda: producer.send(b"2"),
                    lambda: inbox.receive(),
                    lambda: broker.admin("topics.list"),
                ):
                    with pytest.raises(Unauthenticated, match="revoked"):
                        await again(call)
                assert trio.current_time() - began_s < 2
        assert (await root.admin("topics.stats", topic="t"))["producers"] == []


async def test_lost_right_closes_producers_and_consumers_and_nothing_else(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O1: the connection stays, and its other topics."""
    mock_clock.autojump_threshold = 0
    async with testing.start() as world, connected(world, await begin(world)) as root:
        add = {"role": "r", "actions": ["produce", "consume"]}
        await root.admin("grants.add", pattern="a/b/*", **add)
        await root.admin("grants.add", pattern="a/c/t", **add)
        async with connected(world, await new_token(root, "r")) as broker:
            lost, kept = await broker.producer("a/b/t"), await broker.producer("a/c/t")
            async with (
                broker.consumer("a/b/t", "s") as gone,
                broker.consumer("a/c/t", "s") as stays,
            ):
                await lost.send(b"1")
                assert [one.payload for one in await arrived(gone)] == [b"1"]
                began_s = trio.current_time()
                await root.admin("grants.remove", role="r", pattern="a/b/*", actions=["produce"])
                with pytest.raises(AccessDenied, match=r"'produce' on a/b/t"):
                    await again(lambda: lost.send(b"2"))
                await root.admin("grants.remove", role="r", pattern="a/b/*")
                with pytest.raises(AccessDenied, match=r"'consume' on a/b/t"):
                    await gone.receive()
                assert trio.current_time() - began_s < 2
                await kept.send(b"3")
                assert (await stays.receive()).payload == b"3"
            with pytest.raises(AccessDenied, match="produce"):
                await broker.producer("a/b/t")
        # The message that was in flight is delivered to another consumer.
        async with root.consumer("a/b/t", "s") as other:
            found = await other.receive()
            assert (found.payload, found.redelivered) == (b"1", True)


async def test_right_that_is_lost_while_a_producer_is_being_opened_opens_nothing(
    mock_clock: trio.testing.MockClock,
) -> None:
    """The check comes again after the wait for the database."""
    async with testing.start() as world, connected(world, await begin(world)) as root:
        await root.admin("grants.add", role="r", pattern="a/b/*", actions=["produce"])
        async with connected(world, await new_token(root, "r")) as broker:
            ensure = world.server.registry.ensure_topic

            async def revoking(name: Any) -> Any:
                found = await ensure(name)
                await root.admin("grants.remove", role="r", pattern="a/b/*")
                return found

            world.server.registry.ensure_topic = revoking  # type: ignore[method-assign]
            with pytest.raises(AccessDenied):
                await broker.producer("a/b/t")
        assert (await root.admin("topics.stats", topic="a/b/t"))["producers"] == []


async def test_expired_token_ends_its_connections_within_two_seconds(
    mock_clock: trio.testing.MockClock,
) -> None:
    mock_clock.autojump_threshold = 0
    async with testing.start() as world, connected(world, await begin(world)) as root:
        expires_at_ms = world.clock.now_ms() + 60_000
        token = await new_token(root, "r", expires_at_ms=expires_at_ms)
        async with connected(world, token) as broker:
            with pytest.raises(Unauthenticated, match="expired"):
                await again(lambda: broker.admin("outboxes.poll"))
        assert expires_at_ms <= world.clock.now_ms() < expires_at_ms + 2_000
        with pytest.raises(Unauthenticated, match="expired"):
            async with connected(world, token):
                pass


async def test_role_has_two_valid_tokens_at_most(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O1: one token can replace the other without a pause."""
    async with testing.start() as world, connected(world, await begin(world)) as root:
        first = await new_token(root, "r")
        await world.clock.advance(ms=1)
        second = await new_token(root, "r")
        with pytest.raises(LimitExceeded, match=f"tokens revoke {first.id}"):
            await new_token(root, "r")
        given = {"role": "r", "id": second.id, "digest": second.digest}
        with pytest.raises(AlreadyExists):  # a request without an answer is repeated
            await root.admin("tokens.create", **given)
        assert (await root.admin("tokens.revoke", id=first.id))["state"] == "revoked"
        assert (await root.admin("tokens.revoke", id=first.id))["state"] == "revoked"
        third = await new_token(root, "r")
        listed = await root.admin("tokens.list", role="r")
        assert {one["id"]: one["state"] for one in listed} == {
            second.id: "valid",
            third.id: "valid",
        }
        with pytest.raises(NotFound, match="no token"):
            await root.admin("tokens.revoke", id=first.id)


async def test_tokens_grants_and_last_uses_survive_a_restart(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """O1: on SQLite and on MariaDB. The database has no secret."""
    mock_clock.autojump_threshold = 0
    async with testing.start(engine=engine) as world:
        root_token = await begin(world)
        async with connected(world, root_token) as root:
            for pattern in ("Shop/eu/*", "shop/eu/*", "table://shop/mails"):
                await root.admin("grants.add", role="r", pattern=pattern, actions=["peek"])
            await root.admin("grants.remove", role="r", pattern="shop/eu/*")
            token = await new_token(root, "r")
            async with connected(world, token):
                await trio.sleep(2 * USES_INTERVAL_S)
            before = await root.admin("tokens.list"), await root.admin("grants.list")
        await world.crash()
        await world.restart()
        async with connected(world, root_token) as root:
            tokens, grants = await root.admin("tokens.list"), await root.admin("grants.list")
            assert grants == before[1]
            assert [one["pattern"] for one in grants] == ["Shop/eu/*", "table://shop/mails", "*"]
            used = {one["id"]: one["used_at_ms"] for one in tokens}
            assert used[token.id] == {one["id"]: one["used_at_ms"] for one in before[0]}[token.id]
        connection = engine.connect()
        stored = repr(connection.execute("SELECT * FROM tokens").rows)
        connection.close()
        assert token.secret not in stored
        assert token.digest in [bytes(row[2]) for row in _rows(engine)]


def _rows(engine: Engine) -> list[tuple[Any, ...]]:
    connection = engine.connect()
    try:
        return connection.execute("SELECT * FROM tokens").rows
    finally:
        connection.close()


async def test_tokens_and_grants_are_bounded(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/architecture/bounds.md."""
    from escapement.broker.access import access

    assert (access.MAX_TOKENS, access.MAX_GRANTS, access.MAX_ROLE_GRANTS) == (10_000, 10_000, 256)
    for name in ("MAX_TOKENS", "MAX_GRANTS", "MAX_ROLE_GRANTS"):
        monkeypatch.setattr(access, name, 3)
    async with testing.start() as world, connected(world, await begin(world)) as root:
        for role in ("a", "b"):
            await new_token(root, role)
            await root.admin("grants.add", role=role, pattern="t", actions=["peek"])
        with pytest.raises(LimitExceeded):
            await new_token(root, "c")
        with pytest.raises(LimitExceeded):
            await root.admin("grants.add", role="c", pattern="t", actions=["peek"])
        await root.admin("grants.add", role="a", pattern="t", actions=["produce"])


async def test_client_is_told_what_it_may_do(mock_clock: trio.testing.MockClock) -> None:
    """O1: also without tokens, without grants, and right after a change of its grants."""
    async with testing.start() as world:
        async with world.connect() as anyone:
            assert await anyone.admin("access.own") == {
                "role": None, "token_id": None, "expires_at_ms": None,
                "grants": [{"pattern": "*", "actions": ["admin"]}],
            }  # fmt: skip
        async with connected(world, await begin(world)) as root:
            expires_at_ms = world.clock.now_ms() + 60_000
            token = await new_token(root, "r", expires_at_ms=expires_at_ms)
            async with connected(world, token) as broker:
                own = await broker.admin("access.own")
                assert (own["role"], own["token_id"]) == ("r", token.id)
                assert (own["expires_at_ms"], own["grants"]) == (expires_at_ms, [])
                for pattern, actions in (("b/*", ["peek"]), ("a/b/t", ["produce", "consume"])):
                    await root.admin("grants.add", role="r", pattern=pattern, actions=actions)
                assert (await broker.admin("access.own"))["grants"] == [
                    {"pattern": "a/b/t", "actions": ["produce", "consume"]},
                    {"pattern": "b/*", "actions": ["peek"]},
                ]


async def test_rights_are_checked_after_the_wait_for_a_peer_that_does_not_read(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O1: a peer cannot keep a right by sending requests and not reading their answers."""
    async with testing.start() as world, connected(world, await begin(world)) as root:
        await root.admin("grants.add", role="r", pattern="a/*", actions=["admin"])
        async with connected(world, await new_token(root, "r")) as broker:
            room = trio.Event()
            wait = Outbound.room

            async def full(outbound: Outbound) -> None:
                await room.wait()
                await wait(outbound)

            async def ask() -> None:
                with pytest.raises(AccessDenied):
                    await broker.admin("topics.create", topic="a/b/t")

            monkeypatch.setattr(Outbound, "room", full)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                await world.server.services.access.remove_grant("r", Pattern("a/*"), None)
                room.set()
        assert (await root.admin("topics.list"))["topics"] == []


async def test_messages_cost_no_check(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O1: rights are checked when a producer or a consumer is opened, and never per message."""
    checks = 0
    allows = Rights.allows

    def counted(rights: Rights, role: str, need: Need) -> bool:
        nonlocal checks
        checks += 1
        return allows(rights, role, need)

    async with testing.start() as world, connected(world, await begin(world)) as root:
        producer = await root.producer("t")
        async with root.consumer("t", "s") as inbox:
            monkeypatch.setattr(Rights, "allows", counted)
            for _ in range(20):
                await producer.send_many([b"x"] * 50)
            for message in await arrived(inbox):
                await inbox.ack(message)
            assert checks == 0
            await root.admin("topics.stats", topic="t")
            assert checks == 1


async def test_exposed_broker_that_gets_no_first_token_does_not_serve(
    mock_clock: trio.testing.MockClock, tmp_path: Path, engine: Engine
) -> None:
    """O1: a request that cannot be taken does not leave the broker open to other machines."""
    async with testing.start(engine=engine) as world:
        await Bootstrap(engine, lambda: world.server, tmp_path, False).begin()
        path = BootstrapRequest("root", "0" * 12, bytes(32)).write(tmp_path)
        path.chmod(0o644)
        with pytest.raises(StorageError, match=r"mode 0600.* bootstrap --data"):
            await Bootstrap(engine, lambda: world.server, tmp_path, True).begin()
        path.chmod(0o600)
        await Bootstrap(engine, lambda: world.server, tmp_path, True).begin()
        assert not path.exists()
        assert not world.server.services.access.is_open


async def test_bootstrap_replaces_the_older_of_two_tokens(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O1: the operator of the machine can always get in again."""
    async with testing.start() as world:
        access: Access = world.server.services.access
        tokens = []
        for _ in range(3):
            tokens.append(await begin(world))
            await world.clock.advance(seconds=1)
        await access.bootstrap("root", tokens[2].id, tokens[2].digest)  # once more: no effect
        assert [one.id for one in access.tokens()] == [tokens[1].id, tokens[2].id]
        async with connected(world, tokens[2]) as root:
            assert [one["actions"] for one in await root.admin("grants.list")] == [["admin"]]
