"""The code blocks of a document, and the commands in them."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import click

from escapement.cli.main import escapement as command_line

DOCS = Path(__file__).parents[2] / "docs"
_FENCE = re.compile(
    r'^```(?P<kind>\w*)(?: title="(?P<title>[^"]*)")?\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """A fenced code block; ``title`` is a file name, a terminal, or why the block is not run."""

    kind: str
    title: str
    text: str
    page: str
    line: int

    def compiled(self) -> CodeType:
        """Compile the code, with top-level ``await`` and the line numbers of the document."""
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        return compile("\n" * self.line + self.text, self.page, "exec", flags, dont_inherit=True)

    def printed(self) -> list[str]:
        """Return the output that comments after calls of ``print`` promise."""
        expected: list[str] = []
        after_print = False
        for line in self.text.splitlines():
            code, hash, comment = line.partition("#")
            after_print = "print(" in code or (after_print and not code.strip() and bool(hash))
            if after_print and hash:
                expected.append(comment.strip())
        return expected

    def commands(self) -> Iterator[list[str]]:
        """Yield the words of each command."""
        for line in self.text.replace("\\\n", " ").splitlines():
            if words := shlex.split(line.split(" > ")[0], comments=True):
                yield words[:-1] if words[-1] == "&" else words


def blocks(page: Path, kind: str = "") -> list[Block]:
    """Return the code blocks of a document, or those of one language, in order."""
    text = page.read_text("utf-8")
    return [
        Block(
            found["kind"],
            found["title"] or "",
            found["text"],
            str(page.relative_to(DOCS.parent)),
            text.count("\n", 0, found.start()) + 1,
        )
        for found in _FENCE.finditer(text)
        if kind in ("", found["kind"])
    ]


def parse_command(words: list[str]) -> tuple[list[str], dict[str, object]]:
    """Return the names and the parameters of an `escapement` command.

    Raises:
      ClickException: if the command is not valid.
    """
    assert words[0] == "escapement"
    command: click.Command = command_line
    context = command.make_context("escapement", words[1:])
    names = []
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert found is not None
        assert name is not None
        names.append(name)
        command = found
        context = command.make_context(name, rest, parent=context)
    return names, context.params
