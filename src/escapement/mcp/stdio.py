"""Standard input and output as the streams of the protocol: a JSON object in each line.

Only the protocol writes to standard output. Other output goes to standard error. Threads read and
write, because both descriptors may be files. A stop leaves a thread behind that still reads. The
end of the process ends it.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, cast

import anyio
import trio
from mcp.server.stdio import stdio_server
from mcp_types import PARSE_ERROR, jsonrpc_message_adapter

from escapement.errors import LimitExceeded

# The most bytes of one line. A call with the largest payload that an operator may allow fits.
MOST_LINE_BYTES: Final = 8 * 1024 * 1024
# The most bytes of one read.
_READ_BYTES: Final = 64 * 1024

_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2


@asynccontextmanager
async def standard_streams() -> AsyncIterator[tuple[Any, Any]]:
    """Return the streams of the protocol, which end when standard input ends.

    Raises:
      LimitExceeded: if a line is too long.
    """
    wire = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        async with protocol_streams(_STDIN, wire) as streams:
            yield streams
    finally:
        os.dup2(wire, _STDOUT)
        os.close(wire)


def protocol_streams(source: int, target: int) -> AbstractAsyncContextManager[tuple[Any, Any]]:
    """Return the streams of the protocol over two descriptors."""
    output = OutputLines(target)
    text = InputLines(source, output)
    # The SDK needs only what these classes have of a file.
    return stdio_server(cast("anyio.AsyncFile[str]", text), cast("anyio.AsyncFile[str]", output))


def refusal_of(line: bytes) -> str | None:
    """Return an error as the answer to a line, None if the line is a message of the protocol.

    The SDK drops such lines, so the agent would wait without end. A model may write half of a
    character, such as ``"\\ud83d"``. JSON allows it, and Unicode does not.
    """
    try:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        pass
    else:
        return None
    try:
        found = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        found = None
    id = found.get("id") if isinstance(found, dict) else None
    error = {
        "code": PARSE_ERROR,
        "message": "The line is not a message of the protocol: one JSON object of JSON-RPC 2.0, in "
        "UTF-8, without halves of surrogate pairs, and not nested too deeply. Nothing was done.",
    }
    answer = {"jsonrpc": "2.0", "id": id if isinstance(id, int | str) else None, "error": error}
    return json.dumps(answer) + "\n"


class OutputLines:
    """Writes lines to a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writing = trio.Lock()

    async def write(self, text: str) -> None:
        """Write all of a text."""
        left = memoryview(text.encode())
        async with self._writing:
            while left:
                written = await trio.to_thread.run_sync(
                    os.write, self._descriptor, left, abandon_on_cancel=True
                )
                left = left[written:]

    async def flush(self) -> None:
        """Do nothing: ``write`` keeps nothing back."""

    async def wait_until_written(self) -> None:
        """Wait until the present write has ended."""
        async with self._writing:
            pass


class InputLines:
    """Iterates over the lines of a descriptor.

    While the other end does not take its results, no more lines are read. So the results that wait
    are at most those of calls in progress.
    """

    def __init__(self, descriptor: int, output: OutputLines) -> None:
        self._descriptor = descriptor
        self._output = output

    async def __aiter__(self) -> AsyncIterator[str]:
        buffer = bytearray()
        while chunk := await trio.to_thread.run_sync(
            os.read, self._descriptor, _READ_BYTES, abandon_on_cancel=True
        ):
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                buffer += line
                await self._output.wait_until_written()
                whole = bytes(buffer)
                buffer.clear()
                if not whole.strip():
                    continue
                if (refusal := refusal_of(whole)) is None:
                    yield whole.decode()
                else:
                    await self._output.write(refusal)
            buffer += rest
            if len(buffer) > MOST_LINE_BYTES:
                raise LimitExceeded(
                    f"A request has more than {MOST_LINE_BYTES} bytes. The server ends, because "
                    "it cannot know which request that is."
                )
