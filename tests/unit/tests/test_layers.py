"""Imports between modules go downward only."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import escapement

ROOT = Path(escapement.__file__).parent

# Lowest first. Packages on one floor do not import each other.
FLOORS: list[set[str]] = [
    {
        "errors",
        "clock",
        "interrupt",
        "interruptible",
        "allocator",
        "field",
        "garbage",
        "event_log",
        "identifier",
        "loopback",
    },
    {
        "message",
        "dedup",
        "names",
        "durations",
        "endpoint",
        "failpoints",
        "position",
        "properties",
        "recurrence",
        "replacement",
        "spans",
    },
    {"timewheel", "traits", "group_names", "sorting", "spread", "access"},
    {"protocol", "storage", "http"},
    {"tables"},
    {"doctor"},
    {"client", "broker", "pipeline"},
    {"sync", "sql", "check", "gateway", "push"},
    {"mcp"},
    {"console", "testing"},
    {"bench"},
    {"cli"},
]
# The package's facade re-exports names, so it is above the modules that it names.
FACADES = {"__init__", "__main__"}

# The floors inside the broker.
BROKER_FLOORS: list[set[str]] = [
    {"clock_difference", "load"},
    {"membership"},
    {
        "binary_logs",
        "broker_stats",
        "cluster",
        "connection_wait",
        "crash",
        "directory",
        "findings",
        "lease_keeper",
        "limits",
        "log",
        "metering",
        "outage",
        "runners",
        "service_manager",
        "token_bucket",
    },
    {"subscription"},
    {"config", "topic"},
    {"inspection", "registry"},
    {"access", "push_targets", "upkeep"},
    {"recovery"},
    {"delivery"},
    {"tables"},
    {"publishing"},
    {"inbox", "outbox"},
    {"bulk", "deletion", "lookout", "settlement"},
    {"services", "shared_parts"},
    {"broker"},
    {"admin"},
    {"session", "side_port"},
    {"front"},
    {"node"},
    {"server"},
]

# The floors inside storage.
STORAGE_FLOORS: list[set[str]] = [
    {"blocking", "bootstrap_request", "data_directory", "directory", "engine", "offsets"},
    {"binary_log", "data_table", "encoding", "index", "members", "removal", "schema"},
    {"bundles", "lease"},
    {"audit_log", "bulk_change", "inbox", "log", "ownership"},
    {"archive_record", "catalog", "journal", "outbox"},
    {"cleanup", "commit", "state", "upgrade"},
    {"snapshot"},
]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports_of(path: Path) -> set[str]:
    """Return every module of this package that a file imports, at any place in the file."""
    here = module_name(path).split(".")
    package = here if path.name == "__init__.py" else here[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            found.add(stem)
            found.update(f"{stem}.{alias.name}" for alias in node.names)
    return {name for name in found if name.split(".")[0] == "escapement"}


FILES = sorted(ROOT.rglob("*.py"))
MODULES = {module_name(path): path for path in FILES}


def part_of(module: str, package: str = "escapement") -> str:
    """Return the folder or file of a package that contains a module."""
    below = module.removeprefix(package).lstrip(".")
    return below.split(".")[0] or "__init__"


def upward(floors: list[set[str]], package: str) -> list[str]:
    """Return the imports inside a package that do not go downward."""
    floor_of = {part: floor for floor, parts in enumerate(floors) for part in parts}
    inside = {name for name in MODULES if name == package or name.startswith(f"{package}.")}
    parts = {part_of(name, package) for name in inside} - FACADES
    assert parts == set(floor_of), f"floors and parts differ: {parts ^ set(floor_of)}"
    found = []
    for module in inside:
        part = part_of(module, package)
        if part in FACADES:
            continue
        for name in imports_of(MODULES[module]) & inside:
            target = part_of(name, package)
            if target == part or (target in FACADES and package != "escapement"):
                continue
            if target in FACADES or floor_of[target] >= floor_of[part]:
                found.append(f"{module} imports {name}")
    return found


def test_imports_go_downward_only() -> None:
    found = upward(FLOORS, "escapement")
    assert not found, "\n".join(found)


def test_inside_the_broker_imports_go_downward_only() -> None:
    found = upward(BROKER_FLOORS, "escapement.broker")
    assert not found, "\n".join(found)


def test_inside_storage_imports_go_downward_only() -> None:
    found = upward(STORAGE_FLOORS, "escapement.storage")
    assert not found, "\n".join(found)


def test_imports_have_no_cycles() -> None:
    graph = {
        module: {name for name in imports_of(path) if name in MODULES and name != module}
        for module, path in MODULES.items()
    }
    # "from escapement.x import y" inside package x does not count as an import of x.
    for module, names in graph.items():
        graph[module] = {n for n in names if not module.startswith(n + ".")}
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> None:
        assert module not in trail, " -> ".join([*trail[trail.index(module) :], module])
        if module in done:
            return
        for name in sorted(graph[module]):
            visit(name, [*trail, module])
        done.add(module)

    for module in graph:
        visit(module, [])


def test_the_wheel_depends_on_nothing_but_numpy() -> None:
    for path in (ROOT / "timewheel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            for name in names:
                stem = name.split(".")[0]
                assert stem in {"numpy", "escapement", "__future__"} | _STDLIB, f"{path}: {name}"
                if stem == "escapement":
                    assert part_of(name) == "timewheel", f"{path}: {name}"


_STDLIB = {"bisect", "collections", "dataclasses", "heapq", "itertools", "typing"}
