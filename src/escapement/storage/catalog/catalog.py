"""The catalog: namespaces, topics and subscriptions in the database.

Owns the tables ``namespaces``, ``topics`` and ``subscriptions``. The broker reads them once, when
it starts (storage/state/state.py). Then it changes them through this module. Each function runs
inside a transaction of the caller (``CommitPipeline.transact``). Callers check names beforehand. A
deletion leaves rows in other tables. storage/removal.py marks these rows, and
storage/cleanup/freeing.py deletes them later in small steps.

A *seek* moves the position of a subscription. It replaces the subscription by a new one with the
same name (:func:`replace_subscription`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from escapement.errors import AlreadyExists, Conflict, NotFound
from escapement.names import NamespaceName, SubscriptionKind, TopicName
from escapement.storage import removal
from escapement.storage.bundles import (
    bundle_count,
    bundle_of_name,
    catalog_changed,
    wrong_bundle,
)
from escapement.storage.catalog.policy import NamespacePolicy, SubscriptionPolicy, TopicPolicy
from escapement.storage.catalog.push_targets import delete_push_target
from escapement.storage.engine.base import Connection, Dialect, DuplicateKey, Params, Row
from escapement.storage.engine.paging import by_id, of_topics
from escapement.storage.engine.value_lists import in_list, padded
from escapement.storage.inbox import event_group

# Granularity of a new namespace: the span of due times that a topic reads from the index at a time.
DEFAULT_GRANULARITY_MS: Final = 300_000
# Tick of a new namespace: the interval at which delayed messages that fall due are delivered. A
# shorter tick costs processor time for busy topics, and none for idle ones: docs/benchmarks.md.
DEFAULT_TICK_MS: Final = 10
# The columns of the records below, in the order of their fields.
_NAMESPACE_COLUMNS: Final = (
    "id, tenant, name, delays_enabled, granularity_ms, tick_ms, created_at_ms, policy"
)
TOPIC_COLUMNS: Final = "id, namespace_id, name, bundle_id, next_offset, created_at_ms, policy"
SUBSCRIPTION_COLUMNS: Final = (
    "id, topic_id, name, kind, start_offset, start_due_ms, fill_from, fill_until, created_at_ms,"
    " origin_id, policy"
)
INSERT_TOPIC: Final = (
    "INSERT INTO topics (namespace_id, name, bundle_id, next_offset, created_at_ms)"
    " VALUES (?, ?, ?, ?, ?)"
)
INSERT_SUBSCRIPTION: Final = (
    "INSERT INTO subscriptions (topic_id, name, kind, start_offset, start_due_ms, fill_from,"
    " fill_until, created_at_ms, origin_id, policy, finished_count)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)"
)

Kind = SubscriptionKind


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace of a tenant, with its delay settings and its policy."""

    id: int
    tenant: str
    name: str
    delays_enabled: bool
    granularity_ms: int
    tick_ms: int
    created_at_ms: int
    policy: NamespacePolicy = field(default_factory=NamespacePolicy)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic. ``next_offset`` is as of the last checkpoint. The journal has later messages."""

    id: int
    namespace_id: int
    name: str
    bundle_id: int
    next_offset: int
    created_at_ms: int
    policy: TopicPolicy = field(default_factory=TopicPolicy)


class Beginning(NamedTuple):
    """Where a subscription begins: the fields that decide which messages it gets.

    It gets messages with offsets from ``start_offset`` on. A shared subscription also gets earlier
    ones that are due at ``start_due_ms`` or later. The broker reads messages with offsets in
    ``[fill_from, fill_until)`` from the log to *fill in* those that the index may have dropped.
    """

    start_offset: int = 0
    start_due_ms: int = 0
    fill_from: int = 0
    fill_until: int = 0


# The beginning of a subscription that gets all messages of a topic, none of which is filled in.
FROM_THE_START: Final = Beginning()


@dataclass(frozen=True, slots=True)
class SubscriptionRecord:
    """A subscription, with the fields of its :class:`Beginning`.

    Each seek replaces a subscription by a new one. ``origin_id`` is the id of the first of them, or
    the subscription's own id if there was no seek. Its lag is stored under this id.
    """

    id: int
    topic_id: int
    name: str
    kind: Kind
    start_offset: int
    start_due_ms: int
    fill_from: int
    fill_until: int
    created_at_ms: int
    origin_id: int
    policy: SubscriptionPolicy = field(default_factory=SubscriptionPolicy)

    @property
    def is_filling(self) -> bool:
        """Whether the broker still has to read earlier messages from the log for this one."""
        return self.fill_from < self.fill_until


# -- namespaces ----------------------------------------------------------------


def create_namespace(
    connection: Connection,
    tenant: str,
    name: str,
    now_ms: int,
    *,
    delays_enabled: bool = True,
    tick_ms: int = DEFAULT_TICK_MS,
) -> Namespace:
    """Create a namespace.

    Args:
      tick_ms: the interval at which delayed messages that fall due are delivered.

    Raises:
      AlreadyExists: if the tenant has a namespace of this name.
    """
    granularity_ms = DEFAULT_GRANULARITY_MS
    params = (tenant, name, int(delays_enabled), granularity_ms, tick_ms, now_ms)
    id = _insert(
        connection,
        "INSERT INTO namespaces (tenant, name, delays_enabled, granularity_ms, tick_ms,"
        " created_at_ms) VALUES (?, ?, ?, ?, ?, ?)",
        params,
        f"namespace {tenant}/{name}",
    )
    catalog_changed(connection)
    return Namespace(id, tenant, name, delays_enabled, granularity_ms, tick_ms, now_ms)


def find_namespace(connection: Connection, name: NamespaceName) -> Namespace:
    """Return the namespace with this name.

    Raises:
      NotFound: if it does not exist or is being deleted.
    """
    rows = connection.execute(
        f"SELECT {_NAMESPACE_COLUMNS} FROM namespaces n WHERE n.tenant = ? AND n.name = ?"
        " AND NOT EXISTS (SELECT 1 FROM removals r WHERE r.kind = 'namespace' AND r.id = n.id)",
        (name.tenant, name.namespace),
    ).rows
    if not rows:
        raise NotFound(f"namespace {name.full} does not exist")
    return _namespace(rows[0])


def update_namespace(connection: Connection, namespace: Namespace) -> None:
    """Store the delay settings and the policy of a namespace. Raises ``NotFound``."""
    _touch(
        connection,
        "UPDATE namespaces SET delays_enabled = ?, granularity_ms = ?, tick_ms = ?, policy = ?"
        " WHERE id = ?",
        (
            int(namespace.delays_enabled),
            namespace.granularity_ms,
            namespace.tick_ms,
            namespace.policy.encode(),
            namespace.id,
        ),
        f"namespace {namespace.tenant}/{namespace.name}",
    )
    catalog_changed(connection)


def delete_namespace(connection: Connection, namespace: Namespace) -> None:
    """Delete a namespace.

    Raises:
      Conflict: if it has topics.
      NotFound: if it does not exist.
    """
    what = f"namespace {namespace.tenant}/{namespace.name}"
    # First lock the namespace. The creation of a topic locks it too: see ``open_namespace``.
    connection.execute("UPDATE namespaces SET name = name WHERE id = ?", (namespace.id,))
    if connection.execute(
        "SELECT 1 FROM topics WHERE namespace_id = ? LIMIT 1", (namespace.id,)
    ).rows:
        raise Conflict(f"{what} still has topics; delete them first")
    _touch(connection, "DELETE FROM namespaces WHERE id = ?", (namespace.id,), what)
    catalog_changed(connection)


def open_namespace(connection: Connection, dialect: Dialect, namespace_id: int) -> None:
    """Check that a namespace takes new topics, and lock it until the transaction ends.

    Raises:
      NotFound: if the namespace was deleted.
      Conflict: if it is being deleted.
    """
    rows = connection.execute(
        f"SELECT tenant, name FROM namespaces WHERE id = ?{dialect.share_lock}", (namespace_id,)
    ).rows
    if not rows:
        raise NotFound("The namespace was deleted. Try again.")
    if namespace_id in removal.marked(connection, "namespace"):
        raise Conflict(
            f"Namespace {'/'.join(rows[0])} is being deleted with everything in it. Wait until it"
            " is gone."
        )


def mark_namespace(connection: Connection, dialect: Dialect, namespace_id: int) -> None:
    """Mark a namespace for deletion with everything in it."""
    # Creations of topics that lock the namespace end first. Later ones find the mark.
    connection.execute(
        f"SELECT id FROM namespaces WHERE id = ?{dialect.update_lock}", (namespace_id,)
    )
    removal.mark(connection, "namespace", namespace_id)
    catalog_changed(connection)


# -- topics --------------------------------------------------------------------


def create_topic(
    connection: Connection, namespace_id: int, name: str, now_ms: int, bundle_id: int = 0
) -> TopicRecord:
    """Create a topic with an id that was never used before.

    Raises:
      AlreadyExists: if the namespace has a topic of this name.
      NotFound: if the namespace was deleted.
    """
    if not connection.execute("SELECT 1 FROM namespaces WHERE id = ?", (namespace_id,)).rows:
        raise NotFound(f"the namespace of topic {name} was deleted")
    params = (namespace_id, name, bundle_id, 0, now_ms)
    id = _insert(connection, INSERT_TOPIC, params, f"topic {name}")
    return TopicRecord(id, namespace_id, name, bundle_id, 0, now_ms)


def find_topic(connection: Connection, name: TopicName) -> TopicRecord:
    """Return the topic with this name.

    Raises:
      NotFound: if it does not exist or its namespace is being deleted.
    """
    rows = connection.execute(
        f"SELECT {TOPIC_COLUMNS} FROM topics WHERE name = ? AND namespace_id ="
        " (SELECT n.id FROM namespaces n WHERE n.tenant = ? AND n.name = ? AND NOT EXISTS"
        " (SELECT 1 FROM removals r WHERE r.kind = 'namespace' AND r.id = n.id))",
        (name.name, name.tenant, name.namespace),
    ).rows
    if not rows:
        raise NotFound(f"topic {name.full} does not exist")
    return topic_of(rows[0])


def check_places(
    connection: Connection, dialect: Dialect, names: Sequence[TopicName], bundle_id: int
) -> None:
    """Check that these names of one namespace belong to a bundle, in the open transaction.

    A name belongs to the bundle of its topic. Without a topic, its hash decides. The number of
    bundles cannot grow before the transaction ends.

    Raises:
      WrongBundle: if a name belongs to another bundle.
    """
    count = bundle_count(connection, dialect.share_lock)
    if count == 1:
        return
    for full, there in elsewhere(connection, names, bundle_id).items():
        raise wrong_bundle(full, there, bundle_id)
    for name in names:
        there = bundle_of_name(name.full, count)
        if there != bundle_id:
            raise wrong_bundle(name.full, there, bundle_id)


def elsewhere(connection: Connection, names: Sequence[TopicName], bundle_id: int) -> dict[str, int]:
    """Return those names whose topics are in other bundles than this one, with the bundle."""
    by_namespace: dict[NamespaceName, list[str]] = {}
    for name in names:
        by_namespace.setdefault(name.in_namespace, []).append(name.name)
    return {
        TopicName(namespace.tenant, namespace.namespace, str(found)).full: int(there)
        for namespace, within in by_namespace.items()
        for some in padded(within)
        for found, there in connection.execute(
            "SELECT t.name, t.bundle_id FROM topics t JOIN namespaces n ON n.id = t.namespace_id"
            " WHERE n.tenant = ? AND n.name = ? AND t.bundle_id <> ?"
            f" AND t.name {in_list(some)}",
            (namespace.tenant, namespace.namespace, bundle_id, *some),
        ).rows
    }


def update_topic(connection: Connection, topic: TopicRecord) -> None:
    """Store the policy of a topic. Raises ``NotFound``."""
    _touch(
        connection,
        "UPDATE topics SET policy = ? WHERE id = ?",
        (topic.policy.encode(), topic.id),
        f"topic {topic.name}",
    )


def delete_topic(connection: Connection, topic_id: int) -> None:
    """Delete a topic and its subscriptions. Their rows in other tables are deleted later.

    Raises:
      NotFound: if the topic does not exist.
    """
    bundle_id = _bundle_of(connection, topic_id)
    _touch(connection, "DELETE FROM topics WHERE id = ?", (topic_id,), f"topic {topic_id}")
    removal.mark(connection, "topic", topic_id, bundle_id)
    rows = connection.execute(
        "SELECT id, origin_id FROM subscriptions WHERE topic_id = ?", (topic_id,)
    ).rows
    for subscription_id, origin_id in rows:
        _delete_subscription(connection, subscription_id, origin_id, bundle_id)


# -- subscriptions -------------------------------------------------------------


def create_subscription(
    connection: Connection,
    topic_id: int,
    name: str,
    kind: Kind,
    now_ms: int,
    begin: Beginning = FROM_THE_START,
    *,
    origin_id: int = 0,
    policy: SubscriptionPolicy | None = None,
) -> SubscriptionRecord:
    """Create a subscription of a topic.

    Args:
      begin: which messages the subscription gets.
      origin_id: for a seek, the origin of the subscription that this one replaces; 0 for none.
      policy: the policy; None for the default.

    Raises:
      AlreadyExists: if the topic has a subscription of this name.
    """
    policy = policy or SubscriptionPolicy()
    rest = (*begin, now_ms)
    params = (topic_id, name, kind, *rest, origin_id, policy.encode())
    id = _insert(connection, INSERT_SUBSCRIPTION, params, f"subscription {name}")
    return SubscriptionRecord(id, topic_id, name, kind, *rest, origin_id or id, policy)


def update_subscription(connection: Connection, subscription: SubscriptionRecord) -> None:
    """Store the policy of a subscription. Raises ``NotFound``.

    Checkpoints store how far it is filled in (storage/state/checkpoint.py).
    """
    _touch(
        connection,
        "UPDATE subscriptions SET policy = ? WHERE id = ?",
        (subscription.policy.encode(), subscription.id),
        f"subscription {subscription.name}",
    )


def replace_subscription(
    connection: Connection, old: SubscriptionRecord, now_ms: int, begin: Beginning
) -> SubscriptionRecord:
    """Replace a subscription by a new one that has acknowledged nothing, for a seek.

    The new one has another id, and the same name, kind, policy, lag and group completions. The old
    one's rows in other tables are deleted later. Journal entries for its id have no effect any
    more.

    Args:
      begin: which messages the new subscription gets.

    Raises:
      NotFound: if the old subscription does not exist.
    """
    _end_subscription(connection, old.id, _bundle_of(connection, old.topic_id))
    new = create_subscription(
        connection,
        old.topic_id,
        old.name,
        old.kind,
        now_ms,
        begin,
        origin_id=old.origin_id,
        policy=old.policy,
    )
    event_group.follow_seek(connection, old.topic_id, old.id, new.id)
    return new


def delete_subscription(connection: Connection, subscription_id: int) -> None:
    """Delete a subscription. Its rows in other tables are deleted later.

    Raises:
      NotFound: if the subscription does not exist.
    """
    rows = connection.execute(
        "SELECT origin_id, topic_id FROM subscriptions WHERE id = ?", (subscription_id,)
    ).rows
    origin_id, topic_id = rows[0] if rows else (0, 0)
    bundle_id = _bundle_of(connection, topic_id)
    _delete_subscription(connection, subscription_id, origin_id, bundle_id)


def _bundle_of(connection: Connection, topic_id: int) -> int:
    """Return the bundle of a topic; 0 if the topic does not exist."""
    rows = connection.execute("SELECT bundle_id FROM topics WHERE id = ?", (topic_id,)).rows
    return int(rows[0][0]) if rows else 0


def _delete_subscription(
    connection: Connection, subscription_id: int, origin_id: int, bundle_id: int
) -> None:
    _end_subscription(connection, subscription_id, bundle_id)
    removal.mark(connection, "lag", origin_id or subscription_id, bundle_id)
    delete_push_target(connection, origin_id or subscription_id)


def _end_subscription(connection: Connection, subscription_id: int, bundle_id: int) -> None:
    _touch(
        connection,
        "DELETE FROM subscriptions WHERE id = ?",
        (subscription_id,),
        f"subscription {subscription_id}",
    )
    removal.mark(connection, "subscription", subscription_id, bundle_id)


# -- reading everything at the start of a broker -------------------------------


def read_namespaces(connection: Connection) -> Iterator[Namespace]:
    return map(_namespace, by_id(connection, "namespaces", _NAMESPACE_COLUMNS))


def read_topics(connection: Connection, bundle_id: int | None) -> Iterator[TopicRecord]:
    """Yield the topics of a bundle, or of all bundles (None), in the order of their ids."""
    if bundle_id is None:
        return map(topic_of, by_id(connection, "topics", TOPIC_COLUMNS))
    rows = by_id(connection, "topics", TOPIC_COLUMNS, "bundle_id = ?", (bundle_id,))
    return map(topic_of, rows)


def read_named(
    connection: Connection, bundle_id: int | None = None
) -> Iterator[tuple[TopicName, TopicRecord]]:
    """Yield the topics of a bundle, or of all, with their full names.

    Leaves out those whose namespace is being deleted.
    """
    deleting = set(removal.marked(connection, "namespace"))
    spaces = {one.id: one for one in read_namespaces(connection) if one.id not in deleting}
    for record in read_topics(connection, bundle_id):
        space = spaces.get(record.namespace_id)
        if space is not None:
            yield TopicName(space.tenant, space.name, record.name), record


def misplaced_topics(connection: Connection, count: int, up_to_id: int) -> dict[str, int]:
    """Return the topics that are in another bundle than their full names say, with the bundle.

    Args:
      count: the number of bundles.
      up_to_id: the highest id of a topic that may be misplaced; see storage/bundles.py.
    """
    if not up_to_id:
        return {}
    found: dict[str, int] = {}
    for name, record in read_named(connection):
        if record.id > up_to_id:
            break
        if record.bundle_id != bundle_of_name(name.full, count):
            found[name.full] = record.bundle_id
    return found


def read_subscriptions(
    connection: Connection, topic_ids: Sequence[int] | None = None
) -> Iterator[SubscriptionRecord]:
    """Yield the subscriptions of some topics; None for all, in the order of their ids."""
    if topic_ids is None:
        return map(subscription_of, by_id(connection, "subscriptions", SUBSCRIPTION_COLUMNS))
    rows = of_topics(connection, "subscriptions", "name", SUBSCRIPTION_COLUMNS, topic_ids)
    return map(subscription_of, rows)


def subscriptions_of(connection: Connection, topic_id: int) -> list[SubscriptionRecord]:
    """Return the subscriptions of one topic, in the order of their ids."""
    rows = connection.execute(
        f"SELECT {SUBSCRIPTION_COLUMNS} FROM subscriptions WHERE topic_id = ? ORDER BY id",
        (topic_id,),
    ).rows
    return [subscription_of(row) for row in rows]


def topics_of_subscriptions(connection: Connection, ids: Sequence[int]) -> dict[int, str]:
    """Return the full name of the topic of each subscription that exists, in whatever bundle."""
    return {
        int(id): TopicName(*names).full
        for some in padded(ids)
        for id, *names in connection.execute(
            "SELECT s.id, n.tenant, n.name, t.name FROM subscriptions s"
            " JOIN topics t ON t.id = s.topic_id JOIN namespaces n ON n.id = t.namespace_id"
            f" WHERE s.id {in_list(some)}",
            some,
        ).rows
    }


def subscription_of(row: Row) -> SubscriptionRecord:
    *rest, origin_id, policy = row
    columns = (*rest, origin_id or row[0], SubscriptionPolicy.decode(policy))
    return SubscriptionRecord(*columns)


def topic_of(row: Row) -> TopicRecord:
    *rest, policy = row
    columns = (*rest, TopicPolicy.decode(policy))
    return TopicRecord(*columns)


def _namespace(row: Row) -> Namespace:
    id, tenant, name, enabled, *rest, policy = row
    fields = (id, tenant, name, bool(enabled), *rest, NamespacePolicy.decode(policy))
    return Namespace(*fields)


def _insert(connection: Connection, sql: str, params: Params, what: str) -> int:
    try:
        return connection.execute(sql, params).last_id
    except DuplicateKey as error:
        raise AlreadyExists(f"{what} exists already") from error


def _touch(connection: Connection, sql: str, params: Params, what: str) -> None:
    if not connection.execute(sql, params).affected:
        raise NotFound(f"{what} does not exist")
