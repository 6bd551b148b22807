"""`escapement mcp`: tools for an agent, over stdin and stdout, until its end."""

from __future__ import annotations

import importlib.util
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import click
import trio

from escapement.access.pattern import ALL, Pattern
from escapement.broker.crash import one_error
from escapement.cli.input.log_options import log_options
from escapement.cli.input.parameters import positive_duration_ms, size_bytes
from escapement.cli.input.remote import broker_option, given_reason, token_file
from escapement.cli.input.tls_files import kept
from escapement.cli.operation.stop_signal import stopped
from escapement.cli.output.log_format import LogFormat, start_logging
from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.client.connection.address import Addresses
from escapement.client.settings import Settings
from escapement.clock import SystemClock
from escapement.durations import format as duration_text
from escapement.errors import InvalidRequest
from escapement.mcp.limits import LARGEST_PAYLOAD_BYTES, MOST_MESSAGES, Limits

_option = partial(click.option, show_default=True, show_envvar=True)
_USUAL: Final = Limits()
_most = click.IntRange(min=1, max=MOST_MESSAGES)


@click.command(
    epilog="""\b
    Examples:
      escapement mcp
      escapement mcp --broker a.example:7650,b.example:7650 --topic 'shop/eu/*'
      escapement mcp --allow-write --topic 'agents/notes/*' --max-delay 7d

    \b
    An agent starts the command by itself. Add it to the agent's configuration, such as:
      {"mcpServers": {"escapement": {"command": "escapement", "args": ["mcp"]}}}

    If the broker has access control, give the command a token of its own with few rights, in
    ESCAPEMENT_TOKEN or --token-file. Standard output has only the protocol; the log is on stderr.
    """,
)
@broker_option
@_option(
    "--allow-write",
    is_flag=True,
    envvar="ESCAPEMENT_MCP_ALLOW_WRITE",
    help="Allow the agent to schedule, cancel and reschedule messages, and to pause deliveries.",
)
@_option(
    "--topic",
    "topics",
    multiple=True,
    metavar="PATTERN",
    envvar="ESCAPEMENT_MCP_TOPIC",
    help="Topics that the agent may use, such as 'shop/eu/*'; may be given several times. "
    "Without it, all topics that the token allows.",
)
@_option(
    "--max-delay",
    "max_delay_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    default=duration_text(_USUAL.max_delay_ms),
    envvar="ESCAPEMENT_MCP_MAX_DELAY",
    help="How far ahead the agent may schedule.",
)
@_option(
    "--max-pending-per-key",
    type=_most,
    default=_USUAL.max_pending_per_key,
    envvar="ESCAPEMENT_MCP_MAX_PENDING_PER_KEY",
    help="Most pending messages of a topic with one key, when the agent schedules another.",
)
@_option(
    "--max-messages",
    type=_most,
    default=_USUAL.max_messages,
    envvar="ESCAPEMENT_MCP_MAX_MESSAGES",
    help="Most messages that one call lists, cancels or reschedules.",
)
@_option(
    "--max-payload",
    "max_payload_bytes",
    type=size_bytes(least="1"),
    metavar="SIZE",
    default="64KiB",
    envvar="ESCAPEMENT_MCP_MAX_PAYLOAD",
    help="Largest payload with properties that the agent may schedule, and most of a payload that "
    "it sees.",
)
@log_options()
def mcp(
    at_broker: Addresses,
    allow_write: bool,
    topics: tuple[str, ...],
    max_delay_ms: int,
    max_pending_per_key: int,
    max_messages: int,
    max_payload_bytes: int,
    log_level: str,
    log_format: LogFormat,
) -> None:
    """Give an agent tools for messages, over the Model Context Protocol.

    The tools list, show and forecast messages. With --allow-write they also schedule, cancel and
    reschedule messages, and pause deliveries. The process is a client of the brokers. It ends when
    its input ends, or with SIGTERM.
    """
    if importlib.util.find_spec("mcp") is None:
        raise InvalidRequest(
            "Tools for agents need the package mcp. Install it with: pip install 'escapement[mcp]'"
        )
    if max_payload_bytes > LARGEST_PAYLOAD_BYTES:
        raise click.BadParameter(
            f"at most {LARGEST_PAYLOAD_BYTES} bytes are allowed.", param_hint="--max-payload"
        )
    limits = Limits(
        topics=tuple(map(Pattern.parse, topics)) or (ALL,),
        may_write=allow_write,
        max_delay_ms=max_delay_ms,
        max_pending_per_key=max_pending_per_key,
        max_messages=max_messages,
        max_payload_bytes=max_payload_bytes,
    )
    start_logging(log_level, log_format)
    from escapement.mcp.serving import run_mcp

    files = kept() if at_broker.tls else {}
    token, settings = token_file(), Settings(reason=given_reason())

    def connected(_: str) -> AbstractAsyncContextManager[Broker]:
        return connect(str(at_broker), name="mcp", token_file=token, settings=settings, **files)

    with one_error():
        trio.run(run_mcp, limits, connected, stopped, SystemClock().now_ms)
