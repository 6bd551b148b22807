"""Listings that show only what the grants of the role cover."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Final

import pytest
import trio.testing

from escapement import testing
from escapement.errors import AccessDenied, NotFound
from escapement.storage.engine.base import Engine
from support.roles import begin, connected, new_token

LISTED: Final[dict[str, tuple[str, ...]]] = {
    "topics": ("a/b/1", "a/b/2", "a/bc/1", "b/b/1", "b/b/12", "b/c/1"),
    "schedules": ("a/b/s", "a/bc/s", "b/b/s", "b/b/x"),
}
# Grants of one role: patterns with the action peek.
VIEWS: Final = (
    ["*"], ["a/*"], ["a/b/*"], ["a/b*"], ["a/b/1"], ["b/b/1*", "a/bc/1"], ["a/*", "a/b/*", "b/b/s"],
    ["c/*"], ["a/b/1", "a/b/9", "b/*"], ["table://a/*"],
)  # fmt: skip


async def test_listing_has_exactly_what_the_grants_of_the_role_cover(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """O1: names, counts and the existence of a namespace, against a naive filter."""
    async with testing.start(engine=engine) as world, connected(world, await begin(world)) as root:
        topics = list(LISTED["topics"])
        await root.admin("topics.create_many", topics=topics, subscription="s")
        for topic in topics:
            async with await root.producer(topic) as producer:
                await producer.send(b"", delay="1h")
        for name in LISTED["schedules"]:
            await root.admin("schedules.create", schedule=name, topic="b/c/1", every_ms=60_000)
        everything = await root.admin("topics.list")
        assert everything["topics"] == sorted(LISTED["topics"])
        namespaces = {row["namespace"]: row for row in await root.admin("namespaces.list")}
        assert {"a/b", "a/bc", "b/b", "b/c"} <= namespaces.keys()
        for number, patterns in enumerate(VIEWS):
            role = f"r{number}"
            for pattern in patterns:
                await root.admin("grants.add", role=role, pattern=pattern, actions=["peek"])

            def seen(names: Iterable[str], within: str = "", by: list[str] = patterns) -> list[str]:
                return sorted(
                    name
                    for name in names
                    if name.startswith(within) and any(fnmatchcase(name, one) for one in by)
                )

            async with connected(world, await new_token(root, role)) as broker:
                topics = seen(LISTED["topics"])
                expected = {"topics": topics, "total": len(topics)}
                assert await broker.admin("topics.list") == expected, patterns
                page = await broker.admin("subscriptions.overview")
                assert [one["topic"] for one in page["subscriptions"]] == topics
                rows = await broker.admin("schedules.list")
                assert [one["schedule"] for one in rows] == seen(LISTED["schedules"])
                covered = {name[:-2] for name in seen(f"{name}/*" for name in namespaces)}
                rows = await broker.admin("namespaces.list")
                assert rows == [namespaces[name] for name in sorted(covered)]
                # Each topic has one message. Only namespaces that the role sees as a whole count.
                pending = [one for one in LISTED["topics"] if one.rpartition("/")[0] in covered]
                if any(not one.startswith("table:") for one in patterns):
                    forecast = await broker.admin("namespaces.forecast")
                    assert forecast["total"] == len(pending), patterns
                for namespace in ("a/b", "b/b", "a/none"):
                    scope = f"{namespace}/"
                    pattern = f"{scope}*"
                    if namespace not in covered and namespace in namespaces:
                        with pytest.raises(AccessDenied):
                            await broker.admin("namespaces.forecast", namespace=namespace)
                    found: Any
                    try:
                        found = (await broker.admin("topics.list", namespace=namespace))["topics"]
                    except (AccessDenied, NotFound) as error:
                        found = type(error)
                    # Whether a namespace exists is for those who may see all of it.
                    if not any(
                        fnmatchcase(pattern, p) or fnmatchcase(p, pattern) for p in patterns
                    ):
                        assert found is AccessDenied, (patterns, namespace)
                    elif namespace == "a/none" and any(fnmatchcase(pattern, p) for p in patterns):
                        assert found is NotFound
                    else:
                        assert found == seen(LISTED["topics"], scope), (patterns, namespace)


async def test_tenant_admin_sees_the_grants_of_the_tenant_and_no_others(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O1: not those of everything either."""
    async with testing.start() as world, connected(world, await begin(world)) as root:
        for pattern in ("a/*", "a/b/t", "b/*"):
            await root.admin("grants.add", role="r", pattern=pattern, actions=["peek"])
        await root.admin("grants.add", role="admin-of-a", pattern="a/*", actions=["admin"])
        async with connected(world, await new_token(root, "admin-of-a")) as broker:
            rows = await broker.admin("grants.list")
            assert [(one["role"], one["pattern"]) for one in rows] == [
                ("admin-of-a", "a/*"), ("r", "a/*"), ("r", "a/b/t")
            ]  # fmt: skip
            rows = await broker.admin("grants.list", within="*", role="r")
            assert [one["pattern"] for one in rows] == ["a/*", "a/b/t"]
