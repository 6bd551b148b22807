"""Tests that run the code of the tutorial and of the guides.

Blocks of a page run in order and share their names. Most pages run on a virtual clock that advances
while a block waits. A block that never ends, such as a consumer, is cancelled. The comments after
``print`` calls are the expected output. The guide for Spark is tested in tests/spark/test_guide.py.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click
import httpx
import pytest
import trio.testing

import escapement
import escapement.sync
from escapement import testing
from escapement.cli.main import escapement as command_line
from escapement.cli.main import run
from escapement.clock import SystemClock
from escapement.storage.catalog.policy import NamespacePolicy, SubscriptionPolicy, TopicPolicy
from escapement.testing import World
from support.code_blocks import DOCS, Block, blocks, parse_command
from support.database.servers import free_port
from support.outbox.existing_tables import DEBEZIUM, EVENTS, EVENTUATE, MASSTRANSIT, WATERMILL
from support.outbox.outboxes import Application, moved, serving
from support.processes.broker import broker_process
from support.tables.shops import Shop

GUIDES: Final = DOCS / "guides"
ORDERS: Final = DOCS.parent / "examples" / "orders"
URL: Final = "escapement://localhost:7650"
TIMEOUT_S: Final = 120
# Virtual hours that a block may take. Most blocks take none.
BLOCK_TIMEOUT_H: Final = 100
POLICIES: Final = {
    "namespaces": NamespacePolicy,
    "topics": TopicPolicy,
    "subscriptions": SubscriptionPolicy,
}
COMMANDS: Final = (*command_line.list_commands(click.Context(command_line)), "send")
PAGES: Final = sorted([DOCS.parent / "README.md", *DOCS.rglob("*.md")])


# -- all documents -----------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_documents_parse(page: Path) -> None:
    lines = [
        re.sub(r"^.*\| (?=escapement )", "", line)
        for block in blocks(page)
        if block.kind in ("", "shell")
        for line in block.text.replace("\\\n", " ").splitlines()
    ]
    for line in lines:
        found_word = re.match(r"escapement ([a-z-]+)", line)
        if not found_word or found_word[1] not in COMMANDS:  # a drawing, or the name of a table
            continue
        (words,) = Block("shell", "", line, "", 0).commands()
        try:
            parse_command(words)
        except click.exceptions.Exit:
            pass  # --help
        except click.ClickException as error:
            raise AssertionError(f"{line}\n{error.format_message()}") from error


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_documents_compiles(page: Path) -> None:
    for block in blocks(page, "python"):
        block.compiled()


def test_reference_has_every_public_name() -> None:
    text = (DOCS / "reference" / "python.md").read_text()
    missing = [
        name for name in escapement.__all__ if not re.search(rf"(escapement\.|- ){name}\b", text)
    ]
    assert not missing


# -- pages on a virtual clock ------------------------------------------------------


@pytest.mark.parametrize("name", ["delays", "retries-and-dead-letters", "schedules", "migrating"])
async def test_code_of_a_guide_prints_what_the_guide_says(
    name: str,
    mock_clock: trio.testing.MockClock,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with testing.start() as world, world.connect() as broker:
        names: dict[str, Any] = {"escapement": escapement, "broker": broker}
        for block in blocks(GUIDES / f"{name}.md"):
            if block.kind == "shell":
                await carry_out(block, broker)
            elif block.kind == "python" and "only" not in block.title:
                await run_block(block, names, world)
                check_printed(block, capsys.readouterr().out)


async def carry_out(block: Block, broker: escapement.Broker) -> None:
    """Apply the block's create and update commands through the admin interface."""
    for words in block.commands():
        match parse_command(words):
            case ["admin", noun, "create" | "update" as verb], given:
                policy = {name: given.pop(name, None) for name in POLICIES[noun].names()}
                named = ("namespace", "topic", "subscription")
                arguments = {n: v for n, v in given.items() if n in named}
                if policy := {n: v for n, v in policy.items() if v is not None}:
                    arguments["policy"] = policy
                await broker.admin(f"{noun}.{verb}", **arguments)
            case _:
                pass  # only shows something, or waits in real time


async def run_block(block: Block, names: dict[str, Any], world: World) -> None:
    """Run a block until it ends, or until ``BLOCK_TIMEOUT_H`` virtual hours have passed."""

    async def run() -> None:
        result = eval(block.compiled(), names)
        if inspect.iscoroutine(result):
            await result
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        for _ in range(BLOCK_TIMEOUT_H):
            await world.clock.advance(hours=1)
        nursery.cancel_scope.cancel()


def check_printed(block: Block, output: str) -> None:
    """Check that the expected lines were printed, in order."""
    printed = iter(output.splitlines())
    for line in block.printed():
        assert line in printed, f"{block.page}:{block.line} did not print {line!r}:\n{output}"


async def test_transactions_of_the_guide_send_messages(
    mysql_url: str, mock_clock: trio.testing.MockClock
) -> None:
    """V7, N7: the SQL and the Python of the guide, in an application's database."""
    application = Application(mysql_url)
    application.run("CREATE TABLE orders (number INT NOT NULL)")
    application.install()
    found = {block.title: block for block in blocks(GUIDES / "transactions.md")}
    with application.session() as cursor:
        for title in ("shop database", "all columns", "requests"):
            for statement in found[title].text.split(";\n"):
                if statement.strip():
                    cursor.execute(statement)
        cursor.connection.commit()
    program = found["orders.py"].text + found["change.py"].text
    names: dict[str, Any] = {}
    exec(in_database(program, application, "shop"), names)
    names["connection"].close()
    now_ms = SystemClock().now_ms()
    async with serving(application, start_ms=now_ms) as world, world.connect() as broker:
        await moved(world)
        async with broker.consumer("shop/eu/reminders", "mail", position="earliest") as consumer:
            await world.clock.advance(days=14, seconds=-60)
            assert await testing.arrived(consumer) == []
            await world.clock.advance(seconds=61)
            messages = await testing.arrived(consumer)
            await consumer.ack([message.id for message in messages])
            await world.clock.advance(days=6)
            (postponed,) = await testing.arrived(consumer)
            assert postponed.key == "order-11"
    by_key = {message.key or "": message for message in messages}
    assert len(messages) == 3
    assert {key: message.payload for key, message in by_key.items()} == {
        "": b"Your payment is due.",
        "order-9": b"Your payment is due.",
        "order-8": b'{"order":8}',
    }
    assert by_key["order-9"].properties == {"language": "en"}
    assert by_key["order-9"].priority == 10
    assert application.run("SELECT number FROM orders") == ((7,), (8,), (11,))
    assert application.run(found["refused rows"].text) == ()


def test_hint_of_the_guide_makes_a_row_come(mysql_url: str, tmp_path: Path) -> None:
    shop = Shop(mysql_url)
    topic = shop.create()
    (program,) = (
        one.text for one in blocks(GUIDES / "message-tables.md") if one.title == "hint.py"
    )
    program = in_database(program, shop, "shop")
    with broker_process(tmp_path / "data", None, "--tables", mysql_url) as process:
        program = program.replace("shop.mails", f"{shop.address.database}.mails")
        program = program.replace("connect()", f"connect({process.url!r})")
        with escapement.sync.connect(process.url) as broker:
            with broker.consumer(topic, "table") as inbox:
                names: dict[str, Any] = {}
                exec(program, names)
                names["connection"].close()
                message = inbox.receive(timeout_s=60)
                assert message is not None
                assert message.row["message"] == {}


def in_database(program: str, application: Application, name: str) -> str:
    """Return a program of a guide that uses ``application`` instead of the database ``name``."""
    to = application.address
    for old, new in {
        'host="db.example"': f'host="{to.host}", port={to.port}, ssl_disabled=True',
        f'user="{name}", password="secret"': f'user="{to.user}", password="{to.password}"',
        f'database="{name}"': f'database="{to.database}"',
    }.items():
        assert old in program
        program = program.replace(old, new)
    return program


def test_program_of_the_guide_moves_money_once(mysql_url: str, tmp_path: Path) -> None:
    """V7: the consumer of the guide, killed after a commit, and started again."""
    application = Application(mysql_url)
    application.install()
    application.run("CREATE TABLE accounts (id INT NOT NULL, balance INT NOT NULL)")
    application.run("INSERT INTO accounts VALUES (1, 0), (2, 0)")
    found = {block.title: block for block in blocks(GUIDES / "processing-exactly-once.md")}
    text = in_database(found["transfers.py"].text, application, "bank")
    assert "escapement://broker.example" in text
    program = tmp_path / "transfers.py"
    topic = "bank/eu/transfers"
    with broker_process(tmp_path / "data", None, "--outbox", mysql_url) as process:
        program.write_text(text.replace("escapement://broker.example", process.url))
        with escapement.sync.connect(process.url) as broker:
            broker.admin("topics.create", topic=topic)
            broker.admin("subscriptions.create", topic=topic, subscription="bank")
            producer = broker.producer(topic, serializer=escapement.JSON)
            for total in (5, 10):
                producer.send({"from": 1, "to": 2, "amount": 5})
                with subprocess.Popen([sys.executable, str(program)]) as consumer:
                    wait_until(lambda total=total: balances(application) == [-total, total])
                    consumer.kill()
            wait_until(
                lambda: not broker.admin("subscriptions.list", topic=topic)[0]["unacknowledged"]
            )
    assert balances(application) == [-10, 10]
    assert application.run("SELECT COUNT(*) FROM escapement_acks")[0][0] == 2


def balances(application: Application) -> list[int]:
    return [balance for (balance,) in application.run("SELECT balance FROM accounts ORDER BY id")]


def wait_until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.05)


# -- the tutorial ------------------------------------------------------------------


def test_commands_of_the_guide_map_the_tables_of_other_projects(
    mysql_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    application = Application(mysql_url)
    for ddl in (DEBEZIUM, EVENTUATE, WATERMILL, MASSTRANSIT, EVENTS):
        application.run(ddl)
    found = {block.title: block for block in blocks(GUIDES / "existing-outboxes.md")}
    application.run(found["index"].text)
    commands = found["add"].text.strip().splitlines()
    for command in commands:
        words = shlex.split(command.replace("mysql://root@db.example/shop", mysql_url))
        assert run(words[1:]) == 0
    capsys.readouterr()
    assert run(["outbox", "list", mysql_url]) == 0
    assert capsys.readouterr().out.count(" ok") == len(commands) == 5


def test_tutorial_prints_what_it_says(tmp_path: Path) -> None:
    """P1, P6: run all commands and programs, in order, against a broker that is killed."""
    with Terminals(tmp_path) as terminals:
        terminals.follow(DOCS / "tutorial.md")


def test_http_guide_prints_what_it_says(tmp_path: Path) -> None:
    """B15: run all requests with curl, in order, against a gateway."""
    with Terminals(tmp_path) as terminals:
        terminals.follow(GUIDES / "http.md")


def test_orders_example_prints_what_it_says(mysql_url: str, tmp_path: Path) -> None:
    """V7: run the example against a broker and a new database."""
    copy = tmp_path / "orders"
    shutil.copytree(ORDERS, copy)
    with Terminals(copy, ESCAPEMENT_OUTBOX=mysql_url) as terminals:
        terminals.follow(ORDERS / "README.md")


class Terminals:
    """A reader with a broker in one terminal, a program in another and commands in a third."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self._directory = directory
        self._port, self._http_port = str(free_port()), str(free_port())
        self._broker: subprocess.Popen[str] | None = None
        self._gateway: subprocess.Popen[str] | None = None
        self._program: subprocess.Popen[str] | None = None
        self._output = ""
        address = f"127.0.0.1:{self._port}"
        self._environment = os.environ | {
            "ESCAPEMENT_LISTEN": address,
            "ESCAPEMENT_BROKER": address,
            "ESCAPEMENT_GATEWAY_LISTEN": f"127.0.0.1:{self._http_port}",
            "PYTHONUNBUFFERED": "1",
            **environment,
        }

    def __enter__(self) -> Terminals:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in (self._broker, self._gateway, self._program):
            if process is not None:
                process.kill()
                process.communicate()

    def follow(self, page: Path) -> None:
        """Write the programs of a page, run its commands in order, and check what they print."""
        for block in blocks(page):
            if block.kind == "python" and block.title.endswith(".py"):
                self.write(block)
            elif block.kind == "shell" and block.title.startswith("terminal"):
                self.forget_output()
                for words in block.commands():
                    self.run(words)
            elif block.kind == "text":
                self.check(block)

    def write(self, block: Block) -> None:
        text = block.text.replace("localhost:7650", f"127.0.0.1:{self._port}")
        (self._directory / block.title).write_text(text)

    def forget_output(self) -> None:
        self._output = ""

    def run(self, words: list[str]) -> None:
        match words:
            case ["escapement", "serve", *_]:
                self._broker = self._start(words)
                assert self._broker.stdout is not None
                self._output = self._broker.stdout.readline()
            case ["escapement", "gateway"]:
                self._gateway = self._start(words)
                assert self._gateway.stdout is not None
                self._output = self._gateway.stdout.readline()
            case ["kill", "-9", "$(cat", file]:
                assert self._broker is not None
                lock = self._directory / file.removesuffix(")")
                assert int(lock.read_text()) == self._broker.pid
                self._broker.kill()
                self._broker.communicate()
            case ["python", "receive.py"]:
                self._program = self._start(words)
            case _:
                process = self._start(words)
                said, _ = process.communicate(timeout=TIMEOUT_S)
                assert process.returncode == 0, (words, said)
                self._output += said

    def _start(self, words: list[str]) -> subprocess.Popen[str]:
        command = [sys.executable, *(words[1:] if words[0] == "python" else ["-m", *words])]
        if words[0] == "curl":
            command = [word.replace("7652", self._http_port) for word in words]
        return subprocess.Popen(
            command,
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )

    def check(self, block: Block) -> None:
        """Compare the block with the latest output. … matches any text."""
        if block.title == "terminal 3":
            assert self._program is not None
            self._output, _ = self._program.communicate(timeout=TIMEOUT_S)
        pattern = r"\s+".join(map(re.escape, block.text.split())).replace("…", ".*")
        pattern = pattern.replace("7650", self._port).replace("7652", self._http_port)
        said = self._output.strip()
        assert re.fullmatch(pattern, said, re.DOTALL), f"{block.page}:{block.line}\n{said}"


# -- testing -----------------------------------------------------------------------


def test_tests_of_the_testing_guide_pass(tmp_path: Path) -> None:
    """B4: with pytest in a separate process, as a user runs them."""
    found = blocks(GUIDES / "testing.md")
    for block in found:
        (tmp_path / block.title).write_text(block.text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tests = sum(block.text.count("def test_") for block in found)
    assert f"{tests} passed" in done.stdout


# -- frameworks --------------------------------------------------------------------


def files_of_frameworks() -> dict[str, Block]:
    return {block.title: block for block in blocks(GUIDES / "frameworks.md", "python")}


async def test_fastapi_application_schedules_and_its_worker_receives(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of_frameworks()
    printed: list[object] = []
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(testing.start())
        monkeypatch.setattr(escapement, "connect", lambda url, **options: world.connect(**options))
        web: dict[str, Any] = {"__name__": "app"}
        worker: dict[str, Any] = {"__name__": "worker", "print": printed.append}
        exec(files["app.py"].compiled(), web)
        exec(files["worker.py"].compiled(), worker)
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(worker["work"])
        app = web["app"]
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                for _ in range(2):
                    answer = await client.post("/orders/7")
                    assert answer.status_code == 201
                    assert answer.json() == {"reminder": "shop/eu/reminders@0"}
            await world.clock.advance(days=13)
            assert printed == []
            await world.clock.advance(days=1)
            assert printed == ["Your payment is due."]
        nursery.cancel_scope.cancel()


DJANGO: Final = """
import sys
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["shop"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
from django.core.management import call_command
from django.test import RequestFactory
from shop.views import order

answer = order(RequestFactory().post("/orders/7"), 7)
assert answer.status_code == 201
call_command("send_reminders", count=1)
"""


def test_django_view_schedules_and_its_command_receives(tmp_path: Path) -> None:
    for title, block in files_of_frameworks().items():
        if title.startswith("shop/"):
            file = tmp_path / title
            file.parent.mkdir(parents=True, exist_ok=True)
            for folder in (file.parent, *file.parent.parents):
                if folder.is_relative_to(tmp_path / "shop"):
                    (folder / "__init__.py").touch()
            file.write_text(block.text)
    with broker_process(tmp_path / "data") as broker, escapement_sync(broker.url) as client:
        client.admin("subscriptions.create", topic="shop/eu/reminders", subscription="mail")
        for file in (tmp_path / "shop").rglob("*.py"):
            text = file.read_text().replace(URL, broker.url)
            file.write_text(text.replace("days=14", "seconds=1"))
        done = subprocess.run(
            [sys.executable, "-c", DJANGO],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "Your payment is due.\n"), done.stderr


@contextmanager
def escapement_sync(url: str) -> Iterator[Any]:
    import escapement.sync

    with escapement.sync.connect(url) as client:
        yield client


def test_threads_share_the_jobs(tmp_path: Path) -> None:
    program = files_of_frameworks()["threads.py"].text
    # One write for each line, so that lines of several threads do not mix.
    program = program.replace("print(message.value)", 'print(message.value + "\\n", end="")')
    with broker_process(tmp_path / "data") as broker:
        command = [sys.executable, "-u", "-c", program.replace(URL, broker.url)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                jobs = {process.stdout.readline().strip() for _ in range(100)}
            finally:
                process.kill()
    assert jobs == {f"job {number}" for number in range(100)}
