"""`escapement admin`: commands that manage a running broker.

Each kind of thing, such as topics, has a group of commands, in a file of its own. Begin with
``group.py``, the base of all these commands.
"""

from __future__ import annotations

from escapement.cli.admin.audit import audit
from escapement.cli.admin.bootstrap import bootstrap
from escapement.cli.admin.broker import broker
from escapement.cli.admin.bulk import bulk
from escapement.cli.admin.cluster import cluster
from escapement.cli.admin.grants import grants
from escapement.cli.admin.group import admin
from escapement.cli.admin.groups import groups
from escapement.cli.admin.inbox import inbox
from escapement.cli.admin.jobs import jobs
from escapement.cli.admin.namespaces import namespaces
from escapement.cli.admin.push import push
from escapement.cli.admin.subscriptions import subscriptions
from escapement.cli.admin.tokens import tokens
from escapement.cli.admin.topics import topics

__all__ = ["admin"]

for _group in (
    namespaces,
    topics,
    subscriptions,
    groups,
    bulk,
    push,
    inbox,
    jobs,
    tokens,
    grants,
    broker,
    cluster,
    audit,
):
    admin.add_command(_group)
admin.add_command(bootstrap)
