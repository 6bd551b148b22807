"""The administrative operations (*verbs*) on namespaces: list, create, update and others."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final, NotRequired, TypedDict

from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.admin.result import Fields
from escapement.broker.admin.verb import MAX_ROWS, Verb
from escapement.broker.broker import Broker
from escapement.storage.catalog.catalog import Namespace
from escapement.storage.catalog.policy import NamespacePolicy


class NamespaceHead(TypedDict):
    """What a namespace is, without its policy."""

    namespace: str
    delays_enabled: bool
    granularity_ms: int
    tick_ms: int
    created_at_ms: int


class NamespaceSize(TypedDict):
    """How many topics a namespace has."""

    topics: int


class NamespaceDeletion(TypedDict):
    """The namespace that was deleted, or would be, and what it contains."""

    deleted: NotRequired[str]
    would_delete: NotRequired[str]
    topics: NotRequired[int]
    subscriptions: NotRequired[int]
    schedules: NotRequired[int]
    consumers: NotRequired[int]
    index_entries: NotRequired[int]


NamespaceSettings = Annotated[dict[str, Plain], Fields(NamespaceHead, NamespacePolicy)]
ListedNamespace = Annotated[dict[str, Plain], Fields(NamespaceHead, NamespaceSize, NamespacePolicy)]


async def _list_namespaces(broker: Broker, given: Arguments) -> list[ListedNamespace]:
    given.end()
    seen = given.caller.coverage("peek")
    async with broker.answering:
        registry = broker.registry
        counts: dict[int, int] = {}
        for record in registry.topics.values():
            counts[record.namespace_id] = counts.get(record.namespace_id, 0) + 1
        shown = (one for one in registry.namespaces if f"{one.tenant}/{one.name}/*" in seen)
        return [
            _namespace(namespace) | {"topics": counts.get(namespace.id, 0)}
            for namespace in islice(shown, MAX_ROWS)
        ]


async def _get_namespace(broker: Broker, given: Arguments) -> NamespaceSettings:
    name = given.namespace_name("namespace")
    given.end()
    return _namespace(broker.registry.namespaces.find(name))


async def _update_namespace(broker: Broker, given: Arguments) -> NamespaceSettings:
    name = given.namespace_name("namespace")
    changes = given.changes("policy")
    given.end()
    return _namespace(await broker.registry.namespaces.update(name, changes))


async def _create_namespace(broker: Broker, given: Arguments) -> NamespaceSettings:
    name = given.namespace_name("namespace")
    given.end()
    return _namespace(await broker.registry.namespaces.create(name))


async def _delete_namespace(broker: Broker, given: Arguments) -> NamespaceDeletion:
    name = given.namespace_name("namespace")
    force, dry_run = given.flag("force"), given.flag("dry_run")
    given.end()
    deletion = broker.services.deletion
    if not force and not dry_run:
        await broker.registry.namespaces.delete(name)
        return {"deleted": name.full}
    contents = deletion.contents(name)
    if not dry_run:
        await deletion.namespace(name)
    counts: NamespaceDeletion = {
        "topics": contents.topics,
        "subscriptions": contents.subscriptions,
        "schedules": contents.schedules,
        "consumers": contents.consumers,
        "index_entries": contents.index_entries,
    }
    return {"would_delete": name.full, **counts} if dry_run else {"deleted": name.full, **counts}


async def _enable_delayed_message(broker: Broker, given: Arguments) -> NamespaceSettings:
    name = given.namespace_name("namespace")
    granularity_ms = given.optional_number("granularity_ms")
    tick_ms = given.optional_number("tick_ms")
    given.end()
    namespace = await broker.registry.namespaces.set_delays(
        name, enabled=True, granularity_ms=granularity_ms, tick_ms=tick_ms
    )
    return _namespace(namespace)


async def _disable_delayed_message(broker: Broker, given: Arguments) -> NamespaceSettings:
    name = given.namespace_name("namespace")
    given.end()
    return _namespace(await broker.registry.namespaces.set_delays(name, enabled=False))


def _namespace(namespace: Namespace) -> NamespaceSettings:
    head: NamespaceHead = {
        "namespace": f"{namespace.tenant}/{namespace.name}",
        "delays_enabled": namespace.delays_enabled,
        "granularity_ms": namespace.granularity_ms,
        "tick_ms": namespace.tick_ms,
        "created_at_ms": namespace.created_at_ms,
    }
    return {**head, **namespace.policy.plain()}


VERBS: Final[dict[str, Verb]] = {
    "namespaces.list": _list_namespaces,
    "namespaces.get": _get_namespace,
    "namespaces.update": _update_namespace,
    "namespaces.create": _create_namespace,
    "namespaces.delete": _delete_namespace,
    "namespaces.enable_delayed_message": _enable_delayed_message,
    "namespaces.disable_delayed_message": _disable_delayed_message,
}
