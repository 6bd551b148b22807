"""`escapement admin bulk`: change all messages that match a filter, by the broker itself.

A command first asks for a *preview*, the number of messages that match. After a confirmation it
starts a bulk change, which goes on without the command.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any, Final

import click

from escapement.cli.admin.group import AdminCommand, topic_argument, verb
from escapement.cli.input.confirm import confirm
from escapement.cli.input.filters import Filters, filter_options
from escapement.cli.input.options import spread_option
from escapement.cli.input.parameters import duration_ms, moment
from escapement.cli.output.progress import ProgressLine
from escapement.cli.output.table import counted, print_record, print_rows
from escapement.client.administration.bulk import Bulk, BulkChange
from escapement.client.delivery_times import at_ms
from escapement.client.selection import criteria
from escapement.errors import Conflict

_COLUMNS: Final = (
    "id", "topic", "action", "state", "messages", "done", "delivered", "skipped", "created_at_ms",
    "role", "reason",
)  # fmt: skip
_BAR_WIDTH: Final = 30


@click.group()
def bulk() -> None:
    """Cancel, reschedule, run now or redrive all messages that match a filter.

    The broker does the work, and continues after a restart. Each command shows first how many
    messages match, and asks whether to go on. The messages that are pending then are changed;
    later ones are not.
    """


_preview_option = click.option(
    "--preview", is_flag=True, help="Print how many messages match; change nothing."
)
_wait_option = click.option("--wait", is_flag=True, help="Wait for the end, and show the progress.")
_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
_reason_option = click.option("--reason", metavar="TEXT", help="A text to show in lists.")


def _starting(command: Callable[..., dict[str, Any]]) -> Callable[..., None]:
    """Add the options that all actions have to ``command``, which returns its own arguments."""

    @filter_options
    @_reason_option
    @_preview_option
    @_wait_option
    @_yes_option
    @wraps(command)
    def wrapped(
        admin: AdminCommand,
        topic: str,
        filters: Filters,
        reason: str | None,
        preview: bool,
        wait: bool,
        yes: bool,
        **given: Any,
    ) -> None:
        if filters.everything is filters.has_conditions:
            raise click.UsageError(
                "Name messages by --from, --until, --key and --property, or by --all."
            )
        action = {"topic": topic, **command(**given)}
        action |= criteria(**filters.conditions()) | {"everything": filters.everything}
        if preview or not yes:
            found = admin.answer("bulk.preview", **action)
            if preview:
                admin.tell(found, lambda found: click.echo(f"{_matching(found)} would be tried"))
                return
            confirm(f"{_words(action['action'])} {_matching(found)} of {topic}?")
        _start(admin, action | {"reason": reason}, wait)

    return wrapped


def _matching(found: dict[str, Any]) -> str:
    more = "" if found["complete"] else "more than "
    return f"{more}{counted(found['messages'], 'message')}"


def _words(action: str) -> str:
    return action.replace("_", " ").capitalize()


def _start(admin: AdminCommand, action: dict[str, Any], wait: bool) -> None:
    started = admin.answer("bulk.start", **action)
    topic, id = started["topic"], started["id"]
    stop = f"escapement admin bulk stop {topic} {id}"
    if not wait:
        admin.tell(started, lambda _: click.echo(f"Started bulk change {id}. To stop it: {stop}"))
        return
    line = ProgressLine()

    def progress(change: BulkChange) -> None:
        if line.wants:
            line.tell(_progress(change))

    try:
        ended = admin.work(lambda broker: _wait(broker.bulk, topic, id, progress))
    except KeyboardInterrupt:
        line.end()
        click.echo(f"Bulk change {id} continues. To stop it: {stop}", err=True)
        raise
    line.end()
    admin.tell(admin.answer("bulk.show", topic=topic, id=id), print_record)
    if ended.state != "done":
        raise Conflict(f"bulk change {id} is {ended.state}: {ended.error or 'it was stopped'}")


async def _wait(
    bulk: Bulk, topic: str, id: int, progress: Callable[[BulkChange], None]
) -> BulkChange:
    return await bulk.wait(await bulk.show(topic, id), progress)


def _progress(change: BulkChange) -> str:
    if not change.messages:
        return "selecting messages"
    filled = change.handled * _BAR_WIDTH // change.messages
    bar = "#" * filled + "." * (_BAR_WIDTH - filled)
    return f"[{bar}] {change.handled:,} of {counted(change.messages, 'message')}"


@verb(bulk, "cancel", "orders --key order-7", "orders --until 2026-12-24T00:00Z --preview")
@topic_argument
@_starting
def cancel_all() -> dict[str, Any]:
    """Cancel the messages of TOPIC that match, as `escapement cancel` does."""
    return {"action": "cancel"}


@verb(bulk, "reschedule", "orders --all --delay 2h --spread 30m", "orders --key k --delay 1d --yes")
@topic_argument
@click.option(
    "--delay", "delay_ms", type=duration_ms, metavar="DURATION", help="Due this long from now."
)
@click.option("--at", type=moment, metavar="TIME", help="Due at this time.")
@spread_option
@_starting
def reschedule_all(
    delay_ms: int | None, at: datetime | None, spread_ms: int | None
) -> dict[str, Any]:
    """Change the due times of the messages of TOPIC that match."""
    if (delay_ms is None) == (at is None):
        raise click.UsageError("Give either --delay or --at.")
    new_ms = None if at is None else max(at_ms(at), 1)
    return {
        "action": "reschedule", "delay_ms": delay_ms, "at_ms": new_ms, "spread_ms": spread_ms,
    }  # fmt: skip


@verb(bulk, "run-now", "orders --all --spread 10m --wait")
@topic_argument
@spread_option
@_starting
def run_all_now(spread_ms: int | None) -> dict[str, Any]:
    """Make the messages of TOPIC that match due now."""
    return {"action": "run_now", "spread_ms": spread_ms}


@verb(bulk, "redrive", "orders billing --all", "orders billing --property reason=attempts --wait")
@topic_argument
@click.argument("subscription")
@click.option(
    "--in",
    "lie_in",
    metavar="TOPIC",
    help="Dead-letter topic, if it is not the one in the subscription's policy.",
)
@spread_option
@_starting
def redrive_all(subscription: str, lie_in: str | None, spread_ms: int | None) -> dict[str, Any]:
    """Move the dead letters of SUBSCRIPTION that match back to TOPIC, each exactly once.

    Filters apply to the dead letters: they are due at the times at which the messages died.
    """
    return {
        "action": "redrive",
        "subscription": subscription,
        "dead_letter_topic": lie_in,
        "spread_ms": spread_ms,
    }


@verb(bulk, "list", "", "--namespace shop/eu")
@click.option("--namespace", metavar="NAMESPACE", help="Only bulk changes of this namespace.")
def list_changes(admin: AdminCommand, namespace: str | None) -> None:
    """List bulk changes, the latest first."""

    def show(rows: list[dict[str, Any]]) -> None:
        print_rows(rows, _COLUMNS, "no bulk changes")

    admin.ask("bulk.list", show, namespace=namespace)


_id_argument = click.argument("id", type=int)


@verb(bulk, "show", "orders 7")
@topic_argument
@_id_argument
def show_change(admin: AdminCommand, topic: str, id: int) -> None:
    """Show a bulk change of TOPIC and its progress."""
    admin.ask("bulk.show", print_record, topic=topic, id=id)


@verb(bulk, "stop", "orders 7")
@topic_argument
@_id_argument
def stop_change(admin: AdminCommand, topic: str, id: int) -> None:
    """Stop a bulk change of TOPIC. Messages that it has changed stay changed."""
    admin.ask("bulk.stop", print_record, topic=topic, id=id)
