"""Namespaces: groups of topics of a tenant, with delay settings and a policy.

The delay settings are the *tick*, by which a delayed message may be late, and the *granularity*,
the time span of one partition of the delayed index. In a namespace that is being deleted with
everything in it, the broker creates nothing any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import trio

from escapement.broker.registry.bundle import Bundle
from escapement.broker.registry.changes import Changes, Read
from escapement.clock import Clock
from escapement.durations import format as duration_text
from escapement.errors import AlreadyExists, Conflict, InvalidRequest, NotFound, WrongBundle
from escapement.names import DEFAULT_NAMESPACE, DEFAULT_TENANT, NamespaceName
from escapement.storage import removal
from escapement.storage.catalog import catalog
from escapement.storage.catalog.catalog import Namespace
from escapement.storage.catalog.policy import NamespacePolicy
from escapement.storage.engine.base import Connection
from escapement.storage.inbox import inbox
from escapement.storage.inbox.schedule import has_schedules

MIN_TICK_MS: Final = 1
MAX_TICK_MS: Final = 3_600_000
# Ten weeks. A topic reads at most one partition of the index into its timing wheel at a time, and
# longer reads would be hard to plan.
MAX_GRANULARITY_MS: Final = 10 * 7 * 86_400_000
# The namespace of topics whose names have only one part, such as "orders".
DEFAULT_NAME: Final = NamespaceName(DEFAULT_TENANT, DEFAULT_NAMESPACE)


class Namespaces:
    """All namespaces of a broker.

    Args:
      changes: makes changes durable, one at a time for each namespace.
      in_use: returns whether a namespace has topics.
      on_change: awaited after the settings of a namespace have changed.
      bundle: the bundle that the broker owns. All bundles share the namespaces. Every owner may
        create one. Only the owner of bundle 0 changes and deletes them.
    """

    def __init__(
        self,
        clock: Clock,
        changes: Changes,
        in_use: Callable[[Namespace], bool],
        on_change: Callable[[Namespace], Awaitable[None]],
        bundle: Bundle,
    ) -> None:
        self._bundle = bundle
        self._clock = clock
        self._changes = changes
        self._in_use = in_use
        self._on_change = on_change
        self._by_name: dict[str, Namespace] = {}
        self._names: dict[int, str] = {}  # full names by id
        self.deleting: set[int] = set()  # ids of namespaces that are being deleted
        self._made = 0  # the number of changes that this broker has made

    def load(self, namespaces: Iterable[Namespace], deleting: Iterable[int]) -> None:
        """Add the namespaces that the database has, when the broker starts.

        Args:
          deleting: the ids of namespaces that are being deleted with everything in them.
        """
        for namespace in namespaces:
            self._enter(namespace)
        self.deleting = set(deleting)

    def _enter(self, namespace: Namespace) -> None:
        full = f"{namespace.tenant}/{namespace.name}"
        self._by_name[full] = namespace
        self._names[namespace.id] = full
        self._made += 1

    async def refresh(self, source: Read) -> None:
        """Read all namespaces again, because the broker of another bundle has changed one."""

        def read(connection: Connection) -> tuple[list[Namespace], list[int]]:
            found = list(catalog.read_namespaces(connection))
            return found, removal.marked(connection, "namespace")

        made = -1
        while made != self._made:  # a change of this broker may have come after the reading
            made = self._made
            namespaces, deleting = await source(read)
        old = self._by_name
        self._by_name, self._names = {}, {}
        self.load(namespaces, deleting)
        for full, namespace in self._by_name.items():
            if old.get(full, namespace) != namespace:
                with trio.CancelScope(shield=True):
                    await self._on_change(namespace)

    def __iter__(self) -> Iterator[Namespace]:
        """Iterate over all namespaces, ordered by name."""
        return (namespace for _, namespace in sorted(self._by_name.items()))

    def get(self, name: NamespaceName) -> Namespace | None:
        """Return the namespace of this name, or None."""
        return self._by_name.get(name.full)

    def find(self, name: NamespaceName) -> Namespace:
        """Return the namespace of this name. Raises ``NotFound``."""
        found = self._by_name.get(name.full)
        if found is None:
            raise NotFound(f"there is no namespace {name.full}; create it first")
        return found

    def policy(self, name: NamespaceName) -> NamespacePolicy:
        """Return the policy of a namespace; the default policy if it does not exist."""
        found = self._by_name.get(name.full)
        return NamespacePolicy() if found is None else found.policy

    def full_name(self, namespace_id: int) -> str:
        """Return the full name, such as ``shop/eu``, of the namespace with this id."""
        return self._names[namespace_id]

    def by_id(self, namespace_id: int) -> Namespace:
        """Return the existing namespace with this id."""
        return self._by_name[self._names[namespace_id]]

    async def create(self, name: NamespaceName) -> Namespace:
        """Create a namespace. Raises ``AlreadyExists``."""
        async with self._changes.alone(name.full):
            if name.full in self._by_name:
                raise AlreadyExists(f"namespace {name.full} already exists")
            now_ms = self._clock.now_ms()
            namespace = await self._changes.durably(
                lambda connection: catalog.create_namespace(
                    connection, name.tenant, name.namespace, now_ms
                )
            )
            self._enter(namespace)
            return namespace

    async def ensure(self, name: NamespaceName) -> Namespace:
        """Return the namespace of this name; create it with default settings if necessary."""
        found = self._by_name.get(name.full)
        if found is not None:
            return found
        try:
            return await self.create(name)
        except AlreadyExists:
            if name.full not in self._by_name:  # the owner of another bundle has created it
                self._enter(
                    await self._changes.durably(
                        lambda connection: catalog.find_namespace(connection, name)
                    )
                )
            return self._by_name[name.full]

    def _check_bundle(self, name: NamespaceName) -> None:
        if self._bundle.id:
            raise WrongBundle(
                f"All bundles share the namespace {name.full}. Only the broker that owns bundle 0"
                f" changes it, and this broker owns bundle {self._bundle.id}.",
                0,
            )

    async def set_delays(
        self,
        name: NamespaceName,
        *,
        enabled: bool,
        granularity_ms: int | None = None,
        tick_ms: int | None = None,
    ) -> Namespace:
        """Change the delay settings of a namespace; they take effect at once. P2, P4.

        The default namespace is created if necessary.

        Args:
          enabled: whether messages may be sent with a delay.
          granularity_ms: the new granularity; None or 0 keeps the present one.
          tick_ms: the new tick; None or 0 keeps the present one.

        Raises:
          NotFound: if the namespace does not exist.
          InvalidRequest: if the tick or the granularity is out of range, or if the tick is longer
            than the granularity.
        """
        if name == DEFAULT_NAME:
            await self.ensure(name)
        async with self._changes.alone(name.full):
            old = self.find(name)
            new = replace(
                old,
                delays_enabled=enabled,
                granularity_ms=granularity_ms or old.granularity_ms,
                tick_ms=tick_ms or old.tick_ms,
            )
            if not MIN_TICK_MS <= new.tick_ms <= min(MAX_TICK_MS, new.granularity_ms):
                raise InvalidRequest(
                    f"a tick of {duration_text(new.tick_ms)} does not fit: it must be between "
                    "1ms and 1h, and no longer than the granularity of "
                    f"{duration_text(new.granularity_ms)}"
                )
            if new.granularity_ms > MAX_GRANULARITY_MS:
                raise InvalidRequest("the time partition granularity must not exceed 10 weeks")
            await self._change(name, new)
            return new

    async def update(self, name: NamespaceName, changes: Mapping[str, Any]) -> Namespace:
        """Change a namespace's policy; the change takes effect at once.

        Args:
          changes: the new values, by the names of the policy's fields.

        Raises:
          NotFound: if the namespace does not exist.
          InvalidRequest: if a change is invalid; nothing has changed.
        """
        if name == DEFAULT_NAME:
            await self.ensure(name)
        async with self._changes.alone(name.full):
            old = self.find(name)
            new = replace(old, policy=old.policy.updated(changes))
            await self._change(name, new)
            return new

    async def _change(self, name: NamespaceName, new: Namespace) -> None:
        self._check_bundle(name)
        await self._changes.durably(lambda connection: catalog.update_namespace(connection, new))
        self._enter(new)
        with trio.CancelScope(shield=True):  # a stored change must take effect
            await self._on_change(new)

    def check_open(self, namespace: Namespace) -> None:
        """Raise ``Conflict`` if the namespace is being deleted: nothing may be created in it."""
        if namespace.id in self.deleting:
            raise Conflict(
                f"namespace {self.full_name(namespace.id)} is being deleted with everything in it; "
                "wait until it is gone"
            )

    async def mark_for_deletion(self, name: NamespaceName) -> int:
        """Mark a namespace durably for deletion with everything in it. Return its id.

        From then on the broker creates nothing in it. :mod:`~escapement.broker.deletion` does the
        deletion.

        Raises:
          NotFound: if the namespace does not exist.
          WrongBundle: if the broker does not own bundle 0.
        """
        self._check_bundle(name)
        dialect = self._bundle.dialect
        async with self._changes.alone(name.full):
            namespace = self.find(name)
            if namespace.id not in self.deleting:
                await self._changes.durably(
                    lambda connection: catalog.mark_namespace(connection, dialect, namespace.id)
                )
                self.deleting.add(namespace.id)
                self._made += 1
            return namespace.id

    async def delete(self, name: NamespaceName) -> None:
        """Delete an empty namespace.

        Raises ``NotFound``, ``Conflict`` if it is not empty, or ``WrongBundle`` if the broker does
        not own bundle 0.
        """
        self._check_bundle(name)
        async with self._changes.alone(name.full):
            namespace = self.find(name)
            if self._in_use(namespace):
                raise Conflict(
                    f"namespace {name.full} still has topics; delete them first, or delete "
                    "everything with --force"
                )

            def delete(connection: Connection) -> None:
                if has_schedules(connection, name.full):
                    raise Conflict(
                        f"there are schedules in namespace {name.full}, or for topics in it; "
                        "delete them first"
                    )
                catalog.delete_namespace(connection, namespace)
                inbox.close_namespace(connection, name.full)
                removal.done(connection, "namespace", namespace.id)

            await self._changes.durably(delete)
            # A refresh may have removed it already.
            self._by_name.pop(name.full, None)
            self._names.pop(namespace.id, None)
            self._made += 1
            self.deleting.discard(namespace.id)
