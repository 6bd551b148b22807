"""Creation of many topics at once, each perhaps with a subscription.

All topics are inserted with one statement, and all subscriptions with another. The ids are read
back, because an INSERT of many rows does not return them.
"""

from __future__ import annotations

from collections.abc import Sequence

from escapement.errors import AlreadyExists
from escapement.names import TopicName
from escapement.storage.catalog.catalog import (
    INSERT_SUBSCRIPTION,
    INSERT_TOPIC,
    SUBSCRIPTION_COLUMNS,
    TOPIC_COLUMNS,
    SubscriptionRecord,
    TopicRecord,
    check_places,
    open_namespace,
    subscription_of,
    topic_of,
)
from escapement.storage.engine.base import Connection, Dialect, DuplicateKey, Row
from escapement.storage.engine.value_lists import in_list, padded

Created = list[tuple[TopicRecord, SubscriptionRecord | None]]


def create_topics(
    connection: Connection,
    dialect: Dialect,
    namespace_id: int,
    names: Sequence[TopicName],
    subscription: str | None,
    now_ms: int,
    bundle_id: int,
) -> Created:
    """Create topics of one namespace in one bundle, inside the open transaction.

    Args:
      names: the names of the topics, all in the namespace.
      subscription: name of a shared subscription to create for each topic; None for none.

    Raises:
      AlreadyExists: if one of the topics exists. Roll the transaction back.
      NotFound: if the namespace was deleted.
      Conflict: if the namespace is being deleted.
      WrongBundle: if one of the topics belongs to another bundle.
    """
    open_namespace(connection, dialect, namespace_id)
    check_places(connection, dialect, names, bundle_id)
    try:
        connection.execute_many(
            INSERT_TOPIC, [(namespace_id, name.name, bundle_id, 0, now_ms) for name in names]
        )
    except DuplicateKey as error:
        raise AlreadyExists("one of these topics exists already") from error
    select = f"SELECT {TOPIC_COLUMNS} FROM topics WHERE namespace_id = ? AND name"
    rows = _select(connection, select, [name.name for name in names], namespace_id)
    topics = [topic_of(row) for row in rows]
    if subscription is None:
        return [(topic, None) for topic in topics]
    # ``start_due_ms`` of a subscription that begins at "latest", the end of the topic.
    begin = now_ms + 1
    connection.execute_many(
        INSERT_SUBSCRIPTION,
        [(topic.id, subscription, "shared", 0, begin, 0, 0, now_ms, 0, "") for topic in topics],
    )
    select = f"SELECT {SUBSCRIPTION_COLUMNS} FROM subscriptions WHERE name = ? AND topic_id"
    rows = _select(connection, select, [topic.id for topic in topics], subscription)
    by_topic = {one.topic_id: one for one in map(subscription_of, rows)}
    return [(topic, by_topic[topic.id]) for topic in topics]


def _select(
    connection: Connection, sql: str, values: Sequence[str] | Sequence[int], first: str | int
) -> list[Row]:
    """Run a query for a list of values, a part of the list at a time, and return all rows.

    Args:
      sql: the query up to the column that must be one of ``values``. It has one parameter.
      first: the value of that parameter.
    """
    return [
        row
        for some in padded(values)
        for row in connection.execute(f"{sql} {in_list(some)}", (first, *some)).rows
    ]
