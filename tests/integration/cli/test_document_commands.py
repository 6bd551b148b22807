"""Tests that run the commands of the documents, in order, against a broker of their own.

The commands in ``NOT_RUN`` have tests of their own. test_guides.py runs the tutorial, and kills its
broker.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from escapement.cli.main import run
from support.code_blocks import DOCS, blocks
from support.processes.broker import broker_process

GUIDES: Final = DOCS / "guides"
FAILED: Final = (
    "admin subscriptions update orders billing --max-deliveries 1",
    "produce orders a b c",
    "consume orders billing --count 3 --then nack",
)
EU: Final = "admin topics create shop/eu/orders"
# Each page whose commands are run, and commands that make the objects its readers have.
PAGES: Final[dict[Path, tuple[str, ...]]] = {
    DOCS.parent / "README.md": (),
    DOCS / "architecture.md": (),
    DOCS / "limits.md": ("admin subscriptions create orders billing", EU),
    GUIDES / "retries-and-dead-letters.md": (),
    GUIDES / "audit.md": ("admin topics create orders",),
    GUIDES / "delays.md": (),
    GUIDES / "schedules.md": (),
    GUIDES / "migrating.md": (),
    GUIDES / "configuration.md": (),
    GUIDES / "mysql-in-production.md": (EU,),
    GUIDES / "operations.md": (EU,),
    GUIDES / "spark.md": (EU, "admin topics create shop/eu/reminders"),
}
NOT_RUN: Final = ("serve", "pipeline", "demo", "bench", "doctor", "backup", "restore", "migrate")


def commands_of(page: Path) -> list[list[str]]:
    """Return the arguments of the `escapement` commands of a page that are run."""
    return [
        words[1:]
        for block in blocks(page)
        if block.kind == "shell" or (block.kind == "" and "escapement admin" in block.text)
        for words in block.commands()
        if words[0] == "escapement" and words[1] not in NOT_RUN
    ]


class Reader:
    """A reader of a page, who runs its commands and looks at their output."""

    def __init__(self, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
        self._capsysbinary = capsysbinary

    def run(self, words: Sequence[str]) -> str:
        """Run a command that succeeds, and return what it prints."""
        assert words[0] != "consume" or "--count" in words, f"{words} would wait for ever"
        code = run(words)
        out, err = (text.decode() for text in self._capsysbinary.readouterr())
        assert code == 0, (words, err)
        return out

    def fail_messages(self) -> None:
        """Fail the deliveries of three messages, and wait until they are dead letters."""
        for line in FAILED:
            self.run(line.split())
        while len(json.loads(self.run(["dlq", "list", "orders", "billing", "-o", "json"]))) < 3:
            pass


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_succeed_in_their_order(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """B6: they find what they look for."""
    found, reader = commands_of(page), Reader(capsysbinary)
    assert found
    has_failed = False
    with broker_process(tmp_path / "data") as broker:
        monkeypatch.setenv("ESCAPEMENT_BROKER", f"127.0.0.1:{broker.port}")
        for line in PAGES[page]:
            reader.run(line.split())
        for words in found:
            if words[0] == "dlq" and not has_failed:
                reader.fail_messages()
                has_failed = True
            out = reader.run(words)
            assert words[0] != "peek" or "no matching message" not in out, words
