"""`escapement mcp` in its own process: its streams, its end, and a broker that dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import mcp
import pytest
import trio

from escapement.access.token import Token
from escapement.cli.main import run
from escapement.mcp.server import TOOLS
from escapement.mcp.stdio import MOST_LINE_BYTES
from support.code_blocks import DOCS, blocks, parse_command
from support.processes.broker import BrokerProcess, broker_process

COMMAND: Final = ("-m", "escapement", "mcp")
TIMEOUT_S: Final = 60
HELLO: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
LIST_TOPICS: Final = {
    "jsonrpc": "2.0",
    "id": 2,
    "method": "tools/call",
    "params": {"name": "list_topics"},
}


@pytest.fixture(params=["sqlite", "mysql"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    url = request.getfixturevalue("mysql_url") if request.param == "mysql" else None
    with broker_process(tmp_path / "data", url) as running:
        yield running


async def called(client: mcp.Client, tool: str, **arguments: Any) -> Any:
    """Call a tool, and return its result, or the text of its error."""
    result = await client.call_tool(tool, arguments)
    (block,) = result.content
    assert block.type == "text"
    return block.text if result.is_error else result.structured_content


async def test_agent_works_with_a_broker_that_is_killed_and_starts_again(
    broker: BrokerProcess,
) -> None:
    """B18: over stdin and stdout of a real process. A call that meets no broker fails, and later
    calls succeed without a new process.
    """
    # Agents pass on hardly any variables of their environment.
    environment = {"ESCAPEMENT_BROKER": f"127.0.0.1:{broker.port}"}
    environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    options = [*COMMAND, "--allow-write", "--topic", "notes", "--max-pending-per-key", "2"]
    server = mcp.StdioServerParameters(command=sys.executable, args=options, env=environment)
    note = {"topic": "notes", "payload_text": "tea", "key": "k"}
    with trio.fail_after(TIMEOUT_S):
        async with mcp.Client(server) as client:
            assert len((await client.list_tools()).tools) == 9
            for _ in range(2):
                await called(client, "schedule_message", **note, delay="1h")
            assert "2 messages with key" in await called(client, "schedule_message", **note)
            broker.kill()
            broker.start()
            listed = await called(client, "list_messages", topic="notes")
            ids = [one["id"] for one in listed["messages"]]
            assert (await called(client, "cancel_message", ids=ids))["done"] == 2
            assert not (await called(client, "list_messages", topic="notes"))["messages"]


class Server:
    """The command, with pipes."""

    def __init__(self, port: int, *words: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *COMMAND, "--broker", f"127.0.0.1:{port}", *words],
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request, and return the answer."""
        return self.answer(json.dumps(request).encode())

    def answer(self, line: bytes) -> Any:
        """Send a line, and return the next one."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self, last: bytes = b"") -> tuple[int, bytes, str]:
        """Send the last bytes and end the input; return the exit code, stdout and stderr."""
        said, complained = self.process.communicate(last, timeout=TIMEOUT_S)
        return self.process.returncode, said, complained.decode()


def test_process_ends_with_its_input_and_with_sigterm(tmp_path: Path) -> None:
    """B18: also if no broker is there, or it would not accept the token, which nothing shows.
    Standard output has nothing but the protocol.
    """
    token = Token.new().text[:-1]
    file = tmp_path / "token"
    file.write_text(token)
    for variables, words, stop in (
        ({}, "Connection refused", False),
        ({"ESCAPEMENT_TOKEN_FILE": str(file)}, "does not accept the token", True),
    ):
        server = Server(1, **variables)
        assert server.ask(HELLO)["result"]["serverInfo"]["name"] == "escapement"
        answer = server.ask(LIST_TOPICS)["result"]
        assert answer["isError"]
        assert words in answer["content"][0]["text"]
        if stop:  # with its input still open
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(TIMEOUT_S) == 0
        code, said, complained = server.end()
        assert (code, said) == (0, b"")
        assert "mcp.ready" in complained
        assert "mcp.stopped" in complained
        assert "Traceback" not in complained
        assert token not in str(answer) + complained


def test_line_that_is_no_request_is_answered_and_an_endless_one_ends_the_process() -> None:
    """B18: so no agent waits for an answer in vain, and the memory of the process is bounded."""
    server = Server(1)
    assert "result" in server.ask(HELLO)
    for arguments, id in (
        (b'{"namespace":"\\ud83d"}', 7),  # half of a surrogate pair
        (b'{"namespace":"\xff"}', 7),  # not UTF-8
        (b"[" * 5000 + b"]" * 5000, None),
        (b"\xff not JSON", None),
    ):
        line = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":'
        answer = server.answer(line + b'{"name":"list_topics","arguments":' + arguments + b"}}")
        assert (answer["id"], answer["error"]["code"]) == (id, -32700)
    assert server.ask({"jsonrpc": "2.0", "id": 3, "method": "ping"})["result"] == {}
    code, said, complained = server.end(b"x" * (MOST_LINE_BYTES + 2**17))
    assert (code, said) == (1, b"")
    assert f"more than {MOST_LINE_BYTES} bytes" in complained


def test_mistakes_of_the_operator_are_refused_with_a_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B18: a wrong option, pattern or variable, before the agent is served."""
    for words, reason in (
        (["--topic", "a*b"], "a wildcard may stand only at the end"),
        (["--max-payload", "2MiB"], "at most 1048576 bytes are allowed"),
        (["--max-messages", "0"], "--max-messages"),
    ):
        assert run(["mcp", *words]) in (1, 2)
        assert reason in capsys.readouterr().err
    monkeypatch.setenv("ESCAPEMENT_MCP_TOPIC", "a/b/* c/d*e")
    assert run(["mcp"]) == 1
    assert "c/d*e" in capsys.readouterr().err


def test_configuration_in_the_guide_starts_the_command() -> None:
    """B18: the file for agents has a command and variables that exist, and the table all tools."""
    guide = DOCS / "guides" / "agents.md"
    found = json.loads(blocks(guide, "json")[0].text)["mcpServers"]["escapement"]
    names, options = parse_command([found["command"], *found["args"]])
    assert (names, options["topics"]) == (["mcp"], ("shop/eu/*",))
    assert set(found["env"]) == {"ESCAPEMENT_BROKER", "ESCAPEMENT_TOKEN_FILE"}
    cells = re.findall(r"^\| (`[a-z_`, ]+`) \|", guide.read_text(), re.MULTILINE)
    assert set(re.findall(r"\w+", " ".join(cells))) == set(TOOLS)
