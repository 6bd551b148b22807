"""Bulk changes: cancel, reschedule, run now or redrive all messages that match a filter.

They are available as ``Broker.bulk``. The broker carries them out, so they continue when the client
disconnects and when the broker restarts. All times are aware datetimes in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import anyio

from escapement.client.connection.retried_request import Ask
from escapement.client.constructor import internal
from escapement.client.delivery_times import Delay, at_ms, delay_ms, moment_or_none, span_ms
from escapement.client.selection import criteria
from escapement.clock import moment
from escapement.names import TopicName

# How often ``wait`` asks for the progress.
_POLL_S: Final = 0.5
_ENDED: Final = ("done", "stopped", "failed")


@dataclass(frozen=True, slots=True)
class BulkPreview:
    """The number of messages that match a filter.

    If ``complete`` is false, the broker has not looked at all messages, and there may be more.
    """

    messages: int
    complete: bool


@dataclass(frozen=True, slots=True)
class BulkChange:
    """A bulk change, as it was when the broker answered.

    ``state`` is selecting, running, done, stopped, or failed, with the reason in ``error``. While
    the broker selects, ``messages`` is 0. Then it is the number of selected messages, of which
    ``done`` were changed, ``delivered`` had been delivered already, and ``skipped`` needed no
    change for another reason: they were cancelled, expired, dropped, or redriven already.

    ``due_from``, ``due_until``, ``key`` and ``properties`` are the filter. ``new_due`` is the new
    due time of the messages; None means at once. ``role`` is the role of the client that started
    the bulk change, and ``reason`` is the text that it gave.
    """

    id: int
    topic: str
    action: str
    subscription: str | None
    dead_letter_topic: str | None
    due_from: datetime | None
    due_until: datetime | None
    key: str | None
    properties: Mapping[str, Any]
    new_due: datetime | None
    spread: timedelta | None
    state: str
    messages: int
    done: int
    delivered: int
    skipped: int
    error: str | None
    role: str | None
    reason: str | None
    created: datetime
    updated: datetime
    ended: datetime | None

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED

    @property
    def handled(self) -> int:
        """The number of messages that the broker is finished with."""
        return self.done + self.delivered + self.skipped


class Bulk:
    """Requests about the bulk changes of a broker; available as ``Broker.bulk``.

    The methods that start a bulk change, and ``preview``, take the filter as keyword arguments:

    - ``due_from``, ``due_until``: messages due at or after ``due_from``, and before ``due_until``.
    - ``key``: messages with this key.
    - ``properties``: messages with all of these properties.
    - ``everything=True``: all pending messages.

    The messages that are pending at the start belong to the bulk change; later ones do not. All
    these methods raise ``InvalidRequest`` if an argument is not valid, ``NotFound`` if the topic
    does not exist, and ``LimitExceeded`` if too many bulk changes have not ended.
    """

    @internal
    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def cancel(
        self, topic: str, *, reason: str | None = None, **conditions: Any
    ) -> BulkChange:
        """Start to cancel all messages that match; see ``Broker.cancel``.

        Args:
          topic: the name of the topic, as for ``Broker.producer``.
          reason: a text to show in lists.
          conditions: the filter.
        """
        return await self._start("cancel", topic, conditions, reason=reason)

    async def reschedule(
        self,
        topic: str,
        *,
        delay: Delay | None = None,
        at: datetime | None = None,
        spread: Delay | None = None,
        reason: str | None = None,
        **conditions: Any,
    ) -> BulkChange:
        """Start to reschedule all messages that match; see ``Broker.reschedule``.

        Args:
          topic: the name of the topic, as for ``Broker.producer``.
          delay, at: the new due time. A delay counts from the start of the bulk change.
          spread: scatter the due times over this span, from the new due time on.
          reason: a text to show in lists.
          conditions: the filter.

        Raises:
          DelaysDisabled, DelayTooLong: the topic does not accept the latest of the new due times.
        """
        when = {
            "delay_ms": None if delay is None else delay_ms(delay),
            "at_ms": None if at is None else max(at_ms(at), 1),
            "spread_ms": span_ms(spread) or None,
        }
        return await self._start("reschedule", topic, conditions, reason=reason, **when)

    async def run_now(
        self,
        topic: str,
        *,
        spread: Delay | None = None,
        reason: str | None = None,
        **conditions: Any,
    ) -> BulkChange:
        """Start to make all messages that match due now; see ``Broker.run_now``.

        Args:
          topic: the name of the topic, as for ``Broker.producer``.
          spread: scatter the due times over this span, from the start of the bulk change on.
          reason: a text to show in lists.
          conditions: the filter.
        """
        spread_ms = span_ms(spread) or None
        return await self._start("run_now", topic, conditions, reason=reason, spread_ms=spread_ms)

    async def redrive(
        self,
        topic: str,
        subscription: str,
        *,
        dead_letter_topic: str | None = None,
        spread: Delay | None = None,
        reason: str | None = None,
        **conditions: Any,
    ) -> BulkChange:
        """Start to send all dead letters of a subscription that match back to their topic.

        Each is sent exactly once. The filter applies to the dead letters: their due times are the
        times at which the messages died.

        Args:
          topic: the name of the original topic.
          subscription: the subscription that gave the messages up.
          dead_letter_topic: the topic that has the dead letters, if it is not the one in the
            subscription's policy.
          spread: scatter the due times over this span, from the start of the bulk change on.
          reason: a text to show in lists.
          conditions: the filter.
        """
        where = {"subscription": subscription, "dead_letter_topic": dead_letter_topic}
        spread_ms = span_ms(spread) or None
        return await self._start(
            "redrive", topic, conditions, reason=reason, spread_ms=spread_ms, **where
        )

    async def preview(
        self,
        topic: str,
        subscription: str | None = None,
        *,
        dead_letter_topic: str | None = None,
        **conditions: Any,
    ) -> BulkPreview:
        """Count the pending messages that match now, up to about a million and two seconds.

        Args:
          topic: the name of the topic, as for ``Broker.producer``.
          subscription, dead_letter_topic: count dead letters of this subscription instead, as for
            ``redrive``.
          conditions: the filter.
        """
        found = await self._ask(
            "bulk.preview",
            topic=TopicName.parse(topic).full,
            action="cancel" if subscription is None else "redrive",
            subscription=subscription,
            dead_letter_topic=dead_letter_topic,
            **_filter(**conditions),
        )
        return BulkPreview(found["messages"], found["complete"])

    async def list(self, namespace: str | None = None) -> list[BulkChange]:
        """Return the bulk changes of a namespace, or of all namespaces, the latest first.

        The broker keeps the last 100 that have ended.
        """
        return [_change(one) for one in await self._ask("bulk.list", namespace=namespace)]

    async def show(self, topic: str, id: int) -> BulkChange:
        """Return one bulk change.

        Raises:
          NotFound: if the topic has no bulk change with this id.
        """
        return _change(await self._ask("bulk.show", topic=TopicName.parse(topic).full, id=id))

    async def stop(self, topic: str, id: int) -> BulkChange:
        """Stop a bulk change. It changes no message after this returns.

        Messages that it has changed stay changed.

        Raises:
          NotFound: if the topic has no bulk change with this id.
        """
        return _change(await self._ask("bulk.stop", topic=TopicName.parse(topic).full, id=id))

    async def wait(
        self, change: BulkChange, progress: Callable[[BulkChange], None] | None = None
    ) -> BulkChange:
        """Wait until a bulk change has ended, and return it.

        Args:
          progress: called with the bulk change about twice a second.
        """
        while not change.has_ended:
            await anyio.sleep(_POLL_S)
            change = await self.show(change.topic, change.id)
            if progress is not None:
                progress(change)
        return change

    async def _start(
        self, action: str, topic: str, conditions: Mapping[str, Any], **options: Any
    ) -> BulkChange:
        full = TopicName.parse(topic).full
        return _change(
            await self._ask(
                "bulk.start", topic=full, action=action, **_filter(**conditions), **options
            )
        )


def _filter(
    due_from: datetime | None = None,
    due_until: datetime | None = None,
    key: str | None = None,
    properties: Mapping[str, Any] | None = None,
    everything: bool = False,
) -> dict[str, Any]:
    return {**criteria(due_from, due_until, key, properties), "everything": everything}


def _change(plain: Mapping[str, Any]) -> BulkChange:
    spread_ms = plain["spread_ms"]
    return BulkChange(
        plain["id"],
        plain["topic"],
        plain["action"],
        plain["subscription"],
        plain["dead_letter_topic"],
        moment_or_none(plain["from_at_ms"]),
        moment_or_none(plain["until_at_ms"]),
        plain["key"],
        plain["properties"],
        moment_or_none(plain["new_due_at_ms"]),
        None if spread_ms is None else timedelta(milliseconds=spread_ms),
        plain["state"],
        plain["messages"],
        plain["done"],
        plain["delivered"],
        plain["skipped"],
        plain["error"],
        plain["role"],
        plain["reason"],
        moment(plain["created_at_ms"]),
        moment(plain["updated_at_ms"]),
        moment_or_none(plain["ended_at_ms"]),
    )
