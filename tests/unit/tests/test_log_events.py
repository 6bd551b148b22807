"""The events of the log: the table in docs/guides/logs.md lists those that the code logs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import escapement
from escapement.event_log import OTHER, RESERVED

ROOT = Path(escapement.__file__).parent
LOGS = Path(__file__).parents[3] / "docs" / "guides" / "logs.md"
METHODS = {"debug", "info", "warning", "error", "exception"}
EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
# Modules that name events have one of these. No others are parsed, because that takes long.
NAMING = ("_log.", "Outage(", ".__init__(")


@cache
def all_calls() -> dict[str, list[tuple[Path, ast.Call]]]:
    """Return the calls of each function or method name, with the files that have them."""
    found: dict[str, list[tuple[Path, ast.Call]]] = {}
    for path, text in ((path, path.read_text()) for path in ROOT.rglob("*.py")):
        if not any(name in text for name in NAMING):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                match node.func:
                    case ast.Attribute(attr=name) | ast.Name(id=name):
                        found.setdefault(name, []).append((path, node))
    return found


def calls(method: str) -> list[tuple[Path, ast.Call]]:
    return all_calls().get(method, [])


def log_calls() -> Iterator[tuple[Path, ast.Call]]:
    for method in (*METHODS, "log"):
        for path, call in calls(method):
            match call.func:
                case ast.Attribute(value=ast.Name(id="_log")):
                    yield path, call


def names_in(arguments: list[ast.expr]) -> list[str]:
    texts = [one.value for one in arguments if isinstance(one, ast.Constant)]
    return [text for text in texts if isinstance(text, str) and EVENT.fullmatch(text)]


def logged() -> set[str]:
    """Return the events in the code: arguments of log calls, of ``Outage`` and of relays."""
    found = [call for _, call in log_calls()]
    found += [call for _, call in calls("Outage")]
    found += [call for path, call in calls("__init__") if path.parent.name == "outbox"]
    return {name for call in found for name in names_in(call.args)}


def documented() -> dict[str, str]:
    rows = re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \| ([a-z, ]+) \|", LOGS.read_text(), re.MULTILINE)
    assert len(dict(rows)) == len(rows), "an event has two rows"
    return dict(rows)


def test_documentation_lists_the_events_that_the_code_logs() -> None:
    """O6"""
    assert set(documented()) == logged()


def test_documentation_gives_the_level_of_each_event() -> None:
    for path, call in log_calls():
        assert isinstance(call.func, ast.Attribute)
        level = call.func.attr
        for name in names_in(call.args[:1]) if level in METHODS else ():
            level = "error" if level == "exception" else level
            assert level in documented()[name], (path, name, level)


def test_each_event_has_a_name_of_its_own_first_and_no_reserved_field() -> None:
    for path, call in log_calls():
        where = f"{path.relative_to(ROOT)}:{call.lineno}"
        assert isinstance(call.func, ast.Attribute)
        first = call.args[1 if call.func.attr == "log" else 0]
        by_parameter = ast.unparse(first) in ("self._event", "self._end_event")
        assert by_parameter or names_in([first]), f"{where} has no event name"
        assert RESERVED.isdisjoint({one.arg for one in call.keywords}), where


def test_no_module_logs_without_an_event() -> None:
    # The last two silence other packages.
    allowed = {"event_log.py", "binary_log.py", "server.py"}
    for path in ROOT.rglob("*.py"):
        assert path.name in allowed or "getLogger" not in path.read_text(), path


def test_documentation_names_the_event_of_other_packages() -> None:
    assert f"`{OTHER}`" in LOGS.read_text()
