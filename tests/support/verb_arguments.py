"""The arguments of each verb of administration: a valid value, and the permitted types."""

from __future__ import annotations

from typing import Any, Final

# The types that each kind of argument may have; the broker refuses all others.
TEXT: Final = (str,)
MAYBE: Final = (str, type(None))
NUMBER: Final = (int,)
COUNT: Final = (int, type(None))
LIST: Final = (list, type(None))
BLOB: Final = (bytes, type(None))
FLAG: Final = (bool,)
MAP: Final = (dict,)

TOPIC: Final = {"topic": ("t", TEXT)}
SUBSCRIPTION: Final = TOPIC | {"subscription": ("s", TEXT)}
NAMESPACE: Final = {"namespace": ("public/default", TEXT)}
SCHEDULE: Final = {"schedule": ("public/default/again", TEXT)}
ENTRIES: Final = SUBSCRIPTION | {"dead_letter_topic": (None, MAYBE)}
SOME: Final = {"offsets": (None, LIST), "count": (None, COUNT)}
SOUGHT: Final = {
    "key": (None, MAYBE), "from_ms": (None, COUNT), "until_ms": (None, COUNT),
    "properties": ({}, MAP), "after": (None, LIST),
}  # fmt: skip
BULK: Final = TOPIC | {
    "action": ("cancel", TEXT), "subscription": (None, MAYBE), "dead_letter_topic": (None, MAYBE),
    "key": (None, MAYBE), "from_ms": (None, COUNT), "until_ms": (None, COUNT),
    "properties": ({}, MAP), "everything": (True, FLAG), "delay_ms": (None, COUNT),
    "at_ms": (None, COUNT), "spread_ms": (None, COUNT), "reason": (None, MAYBE),
}  # fmt: skip
SPANS: Final = {
    "by_ms": (None, COUNT), "within_ms": (None, COUNT), "origin_ms": (None, COUNT),
}  # fmt: skip
POLICY: Final = {"policy": ({"ttl_ms": None}, MAP)}
# If the valid value is None, the argument may be omitted.
TAKEN: Final[dict[str, dict[str, tuple[Any, tuple[type, ...]]]]] = {
    "namespaces.list": {},
    "namespaces.get": NAMESPACE,
    "namespaces.update": NAMESPACE | POLICY,
    "namespaces.create": {"namespace": ("a/b", TEXT)},
    "namespaces.delete": {
        "namespace": ("a/b", TEXT), "force": (True, FLAG), "dry_run": (True, FLAG),
    },
    "namespaces.enable_delayed_message": NAMESPACE
    | {"granularity_ms": (None, COUNT), "tick_ms": (None, COUNT)},
    "namespaces.disable_delayed_message": NAMESPACE,
    "namespaces.forecast": {"namespace": (None, MAYBE)} | SPANS,
    "topics.list": {"namespace": (None, MAYBE)},
    "topics.get": TOPIC,
    "topics.update": TOPIC | POLICY,
    "topics.stats": TOPIC,
    "topics.create": TOPIC,
    "topics.create_many": {"topics": (["a/b/c"], (list,)), "subscription": (None, MAYBE)},
    "topics.delete": {"topic": ("a/b/gone", TEXT), "force": (False, FLAG)},
    "topics.peek": TOPIC | SOUGHT | {"count": (None, COUNT), "offset": (None, COUNT)},
    "topics.forecast": TOPIC | SPANS,
    "messages.select": TOPIC | SOUGHT,
    "messages.show": TOPIC | {"offset": (0, NUMBER)},
    "subscriptions.list": TOPIC,
    "subscriptions.overview": {
        "namespace": (None, MAYBE), "search": (None, MAYBE), "after": (None, LIST),
        "count": (None, COUNT),
    },
    "subscriptions.get": SUBSCRIPTION,
    "subscriptions.lateness": {
        "topic": (None, MAYBE), "subscription": (None, MAYBE), "namespace": (None, MAYBE),
        "within_ms": (None, COUNT), "count": (None, COUNT),
    },
    "subscriptions.update": SUBSCRIPTION | {"policy": ({"max_rate": None}, MAP)},
    "subscriptions.create": TOPIC
    | {
        "subscription": ("made", TEXT),
        "kind": ("shared", MAYBE),
        "position": ("latest", MAYBE),
        "policy": ({}, MAP),
    },
    "subscriptions.seek": SUBSCRIPTION | {"position": ("latest", TEXT)},
    "subscriptions.delete": TOPIC | {"subscription": ("made", TEXT), "force": (True, FLAG)},
    "dlq.list": ENTRIES | {"count": (None, COUNT)},
    "dlq.find": ENTRIES
    | {
        "offset": (0, NUMBER), "key": (None, MAYBE), "from_ms": (None, COUNT),
        "until_ms": (None, COUNT), "after": (None, LIST),
    },
    "dlq.show": ENTRIES | {"offset": (0, NUMBER)},
    "dlq.count": ENTRIES | SOME | {"after": (None, LIST)},
    "dlq.redrive": ENTRIES | SOME | {"spread_ms": (None, COUNT)},
    "dlq.purge": ENTRIES | SOME,
    "bulk.preview": BULK,
    "bulk.start": BULK,
    "bulk.list": {"namespace": (None, MAYBE)},
    "bulk.show": TOPIC | {"id": (1, NUMBER)},
    "bulk.stop": TOPIC | {"id": (1, NUMBER)},
    "push.create": SUBSCRIPTION | {"url": ("https://a.example/", TEXT), "policy": ({}, MAP)},
    "push.rotate": SUBSCRIPTION | {"keep_ms": (None, COUNT)},
    "push.secrets": {"namespace": (None, MAYBE)},
    "push.update": SUBSCRIPTION | {"policy": ({"timeout_ms": None}, MAP)},
    "push.show": SUBSCRIPTION,
    "push.pause": SUBSCRIPTION,
    "push.resume": SUBSCRIPTION,
    "push.list": {"namespace": (None, MAYBE)},
    "push.delete": SUBSCRIPTION,
    "dispatch.pause": TOPIC
    | {"subscription": (None, MAYBE), "for_ms": (1, COUNT), "until_ms": (None, COUNT)},
    "dispatch.resume": TOPIC | {"subscription": (None, MAYBE)},
    "inbox.list": {},
    "inbox.discard": {"target": ("public/default/t", TEXT)},
    "jobs.list": {},
    "tables.list": {},
    "tables.poll": {"topic": ("table://a/b", TEXT)},
    "outboxes.poll": {},
    "tables.ack": {"topic": ("table://a/b", TEXT), "ids": ([7], (list,))},
    "schedules.list": {"namespace": (None, MAYBE)},
    "schedules.get": SCHEDULE,
    "schedules.create": {
        "schedule": ("public/default/new", TEXT), "topic": ("t", TEXT), "cron": (None, MAYBE),
        "timezone": (None, MAYBE), "every_ms": (60_000, COUNT), "until_ms": (None, COUNT),
        "missed": (None, MAYBE), "payload": (None, BLOB), "key": (None, BLOB),
        "spread_ms": (None, COUNT),
    },
    "schedules.update": SCHEDULE
    | {
        "topic": (None, MAYBE), "cron": (None, MAYBE), "timezone": (None, MAYBE),
        "every_ms": (60_000, COUNT), "until_ms": (None, COUNT), "missed": (None, MAYBE),
        "payload": (None, BLOB), "key": (None, BLOB), "spread_ms": (None, COUNT),
    },
    "schedules.run_now": SCHEDULE,
    "schedules.next": SCHEDULE | {"count": (None, COUNT)},
    "schedules.pause": SCHEDULE,
    "schedules.resume": SCHEDULE,
    "schedules.delete": {"schedule": ("public/default/new", TEXT)},
    "groups.list": TOPIC,
    "groups.get": TOPIC | {"group": ("g", TEXT)},
    "groups.close": SUBSCRIPTION
    | {
        "group": ("g", TEXT), "target": ("u", TEXT), "payload": (None, BLOB), "key": (None, BLOB),
        "properties": (None, BLOB), "priority": (None, COUNT), "delay_ms": (None, COUNT),
        "at_ms": (None, COUNT),
    },
    "groups.delete": TOPIC | {"group": ("g", TEXT)},
    "tokens.create": {
        "role": ("r", TEXT), "id": ("0" * 12, TEXT), "digest": (bytes(32), (bytes,)),
        "expires_at_ms": (None, COUNT),
    },
    "tokens.list": {"role": (None, MAYBE)},
    "tokens.revoke": {"id": ("0" * 12, TEXT)},
    "grants.add": {
        "role": ("r", TEXT), "pattern": ("public/default/*", TEXT), "actions": (["peek"], (list,)),
    },
    "grants.list": {"role": (None, MAYBE), "within": (None, MAYBE)},
    "grants.remove": {
        "role": ("r", TEXT), "pattern": ("public/default/*", TEXT), "actions": (["peek"], LIST),
    },
    "access.own": {},
    "broker.stats": {},
    "broker.findings": {},
    "broker.update": {"table_parallelism": (2, NUMBER)},
    "cluster.status": {},
    "cluster.drain": {"node": ("other", TEXT)},
    "cluster.undrain": {"node": ("other", TEXT)},
    "cluster.move": {"bundle": (0, NUMBER), "node": (None, MAYBE)},
    "cluster.bundles": {"count": (1, NUMBER)},
    "audit.list": {
        "role": (None, MAYBE), "verbs": (None, MAYBE), "object": (None, MAYBE),
        "from_ms": (None, COUNT), "until_ms": (None, COUNT), "before": (None, LIST),
        "count": (None, COUNT),
    },
}  # fmt: skip
