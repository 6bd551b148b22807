"""`escapement admin cluster`: the nodes that share a database, and their bundles of topics."""

from __future__ import annotations

import time
from typing import Any, Final

import click
import trio

from escapement.cli.admin.group import AdminCommand, verb
from escapement.cli.output.progress import ProgressLine
from escapement.cli.output.table import counted, print_record, print_rows
from escapement.client.broker import Broker
from escapement.errors import Conflict
from escapement.storage.bundles import MAX_BUNDLES

_NODES: Final = ("id", "address", "version", "drains", "bundles", "load", "left", "here")
_BUNDLES: Final = ("bundle", "owner", "epoch", "free", "pinned_to")
# The least characters of an id in a table. The whole id has 32.
_SHORT_ID: Final = 8
# How often a command that waits asks the broker.
_POLL_S: Final = 0.2
# How long ``move`` waits. A node that is well takes a bundle within a few seconds; otherwise
# another one stands in for it after two renewals.
_MOVE_TIMEOUT_S: Final = 60.0

_node_argument = click.argument("node")


@click.group()
def cluster() -> None:
    """Manage the nodes that share a database, and their bundles of topics.

    A node is a process of `escapement serve`. NODE is its name, its address, its id, or the
    beginning of its id. Any node can be asked about all others.
    """


@verb(cluster, "status", "", "-o json")
def show_status(admin: AdminCommand) -> None:
    """Show the live nodes, and the owner of each bundle.

    "here" marks the node that answered. "load" is the number of messages per second that the node
    publishes and delivers. "left" is the time after which other nodes take the bundles of a node
    that does not renew its lease. A node of an earlier version may not tell its version ("-").
    With -o json, ids are whole. Nodes without bundles answer too.
    """
    status = admin.work(lambda broker: broker.admin("cluster.status"), observer=True)
    admin.tell(status, print_status)


def print_status(status: dict[str, Any]) -> None:
    """Print the nodes and bundles of a database, with ids as short as they are unique."""
    nodes, bundles = status["nodes"], status["bundles"]
    ids = [one["id"] for one in nodes]
    length = _SHORT_ID
    while len({id[:length] for id in ids}) < len(ids):
        length += 1
    names = {one["id"]: one["address"] or one["name"] for one in nodes}

    def name_of(id: str | None) -> str | None:
        return None if id is None else names.get(id, id[:length])

    rows = [
        {
            **_readable(one),
            "id": one["id"][:length],
            "address": names[one["id"]],
            # Shorter titles, so that a row fits a line of 80 columns.
            "drains": one["draining"],
            "load": one["load_per_s"],
        }
        for one in nodes
    ]
    print_rows(rows, _NODES, "no live nodes")
    click.echo()
    rows = [
        {
            **one,
            "owner": name_of(one["owner_id"]) or "no owner",
            "pinned_to": name_of(one["pinned_to_id"]),
        }
        for one in bundles
    ]
    print_rows(rows, _BUNDLES, "no bundles")
    if status["hint"]:
        click.echo(f"\n{status['hint']}")


def _print_node(node: dict[str, Any]) -> None:
    print_record(_readable(node))


def _readable(node: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a node with the rest of its lease in seconds."""
    left = {"left": f"{node['left_ms'] / 1000:.0f} s"}
    return {key: value for key, value in node.items() if key != "left_ms"} | left


@verb(cluster, "drain", "127.0.0.1:7650", "4f1c --no-wait")
@click.option("--no-wait", is_flag=True, help="Do not wait until the node owns no bundle.")
@_node_argument
def drain_node(admin: AdminCommand, node: str, no_wait: bool) -> None:
    """Move all bundles of a node to other nodes, before it is stopped.

    Messages continue to be delivered meanwhile. The node takes no bundle until it is restarted or
    undrained.
    """
    begun_s = time.monotonic()
    found = admin.answer("cluster.drain", node=node)
    if no_wait:
        admin.tell(found, _print_node)
        return
    line = ProgressLine()
    try:
        admin.work(lambda broker: until_empty(broker, found["id"], line))
    except KeyboardInterrupt:
        line.end()
        undrain = f"escapement admin cluster undrain {found['id']}"
        click.echo(f"The node continues to drain. To end that: {undrain}", err=True)
        raise
    line.end()
    took_ms = round((time.monotonic() - begun_s) * 1000)
    admin.tell(
        {"id": found["id"], "name": found["name"], "bundles": 0, "took_ms": took_ms},
        lambda _: click.echo(f"{found['name']} owns no bundle. It took {took_ms / 1000:.1f} s."),
    )


async def until_empty(broker: Broker, node_id: str, line: ProgressLine) -> None:
    """Wait until a node owns no bundle, or has ended.

    Raises:
      Conflict: if the node is not draining any more, or no other node can take its bundles.
    """
    while True:
        nodes = (await broker.admin("cluster.status"))["nodes"]
        row = next((one for one in nodes if one["id"] == node_id), None)
        if row is None or not row["bundles"]:
            return
        if not row["draining"]:
            raise Conflict(f"{row['name']} was undrained or restarted meanwhile")
        if all(one["draining"] for one in nodes):
            raise Conflict(f"{row['name']} keeps its bundles, because no other node can take them")
        if line.wants:
            line.tell(f"{row['name']} owns {counted(row['bundles'], 'bundle')}")
        await trio.sleep(_POLL_S)


@verb(cluster, "undrain", "127.0.0.1:7650")
@_node_argument
def undrain_node(admin: AdminCommand, node: str) -> None:
    """Let a node that was drained take bundles again."""
    admin.ask("cluster.undrain", _print_node, node=node)


@verb(cluster, "move", "3 127.0.0.1:7650", "3 127.0.0.1:7650 --no-wait", "3 --anywhere")
@click.option("--no-wait", is_flag=True, help="Do not wait until the node owns the bundle.")
@click.option("--anywhere", is_flag=True, help="Let the nodes choose the owner again.")
@click.argument("bundle", type=click.IntRange(min=0))
@click.argument("node", required=False)
def move_bundle(
    admin: AdminCommand, bundle: int, node: str | None, anywhere: bool, no_wait: bool
) -> None:
    """Move a bundle to a node, and keep it there while that node lives.

    If the node ends or is drained, another node takes the bundle. It returns when the node is back.
    With --anywhere, the command does not wait.
    """
    if anywhere is (node is not None):
        raise click.UsageError("Give a NODE, or --anywhere.")
    found = admin.answer("cluster.move", bundle=bundle, node=node)
    if not anywhere and not no_wait:
        line = ProgressLine()
        try:
            found = admin.work(lambda broker: until_moved(broker, found, line))
        finally:
            line.end()
    admin.tell(found, print_record)


async def until_moved(broker: Broker, pinned: dict[str, Any], line: ProgressLine) -> dict[str, Any]:
    """Wait until the node to which a bundle is pinned owns it. Return the row of the bundle.

    Args:
      pinned: the row of the bundle when it was pinned.

    Raises:
      Conflict: if the bundle was pinned elsewhere, or the node does not take it in time.
    """
    bundle, name, node_id = (pinned[key] for key in ("bundle", "pinned_to", "pinned_to_id"))
    with trio.move_on_after(_MOVE_TIMEOUT_S):
        while True:
            status = await broker.admin("cluster.status")
            row: dict[str, Any] = status["bundles"][bundle]
            if row["owner_id"] == node_id:
                return row
            if row["pinned_to_id"] != node_id:
                raise Conflict(f"bundle {bundle} was moved elsewhere meanwhile")
            if all(one["draining"] for one in status["nodes"] if one["id"] == node_id):
                raise Conflict(
                    f"{name} has ended or drains. Bundle {bundle} moves there when it is back"
                )
            if line.wants:
                line.tell(f"{row['owner'] or 'no node'} owns bundle {bundle}")
            await trio.sleep(_POLL_S)
    raise Conflict(
        f"{name} did not take bundle {bundle} within {_MOVE_TIMEOUT_S:.0f} s. The bundle moves"
        " there as soon as the node can take it. Read the log of that node"
    )


@verb(cluster, "bundles", "16")
@click.argument("count", type=click.IntRange(1, MAX_BUNDLES))
def set_bundle_count(admin: AdminCommand, count: int) -> None:
    """Add bundles to the database, until there are COUNT.

    New topics are spread over all bundles. Existing topics stay in their bundles. The number of
    bundles cannot become smaller.
    """
    admin.ask("cluster.bundles", _print_count, count=count)


def _print_count(answer: dict[str, Any]) -> None:
    click.echo(
        f"The database has {counted(answer['bundles'], 'bundle')}; it had {answer['before']}."
        " Existing topics stay where they are."
    )
    if answer["warning"]:
        click.echo(f"Warning: {answer['warning']}", err=True)
