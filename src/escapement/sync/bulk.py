"""The class ``Bulk`` of the blocking client, a facade of ``escapement.Bulk``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from escapement.client.administration import bulk
from escapement.client.administration.bulk import BulkChange, BulkPreview
from escapement.client.constructor import internal
from escapement.sync.loop import Loop


class Bulk:
    """Requests about the bulk changes of a broker; available as ``Broker.bulk``.

    Options and errors are those of the methods of ``escapement.Bulk`` with the same names.
    """

    @internal
    def __init__(self, loop: Loop, found: bulk.Bulk) -> None:
        self._loop = loop
        self._bulk = found

    def cancel(self, topic: str, **options: Any) -> BulkChange:
        """Start to cancel all messages that match."""
        return self._loop.call(self._bulk.cancel, topic, **options)

    def reschedule(self, topic: str, **options: Any) -> BulkChange:
        """Start to reschedule all messages that match."""
        return self._loop.call(self._bulk.reschedule, topic, **options)

    def run_now(self, topic: str, **options: Any) -> BulkChange:
        """Start to make all messages that match due now."""
        return self._loop.call(self._bulk.run_now, topic, **options)

    def redrive(self, topic: str, subscription: str, **options: Any) -> BulkChange:
        """Start to send all dead letters of a subscription that match back to their topic."""
        return self._loop.call(self._bulk.redrive, topic, subscription, **options)

    def preview(
        self, topic: str, subscription: str | None = None, **conditions: Any
    ) -> BulkPreview:
        """Count the pending messages, or the dead letters of a subscription, that match now."""
        return self._loop.call(self._bulk.preview, topic, subscription, **conditions)

    def list(self, namespace: str | None = None) -> list[BulkChange]:
        """Return the bulk changes of a namespace, or of all namespaces, the latest first."""
        return self._loop.call(self._bulk.list, namespace)

    def show(self, topic: str, id: int) -> BulkChange:
        """Return one bulk change."""
        return self._loop.call(self._bulk.show, topic, id)

    def stop(self, topic: str, id: int) -> BulkChange:
        """Stop a bulk change. It changes no message after this returns."""
        return self._loop.call(self._bulk.stop, topic, id)

    def wait(
        self, change: BulkChange, progress: Callable[[BulkChange], None] | None = None
    ) -> BulkChange:
        """Wait until a bulk change has ended, and return it."""
        return self._loop.call(self._bulk.wait, change, progress)
