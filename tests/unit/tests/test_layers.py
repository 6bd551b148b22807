"""Imports go downward only: style.md, point 3."""

from __future__ import annotations

import ast
from pathlib import Path

import escapement

ROOT = Path(escapement.__file__).parent

# Lowest first. Packages on one floor do not import each other.
FLOORS: list[set[str]] = [
    {"errors", "clock", "interrupt"},
    {"message", "dedup", "names", "durations", "position", "properties", "recurrence", "spans"},
    {"timewheel", "traits", "group_names", "sorting"},
    {"protocol", "storage"},
    {"client", "broker", "pipeline"},
    {"sync"},
    {"testing"},
    {"bench"},
    {"cli"},
]
# The package's face hands names on and stands above what it names.
FACES = {"__init__", "__main__"}

# The same inside the broker.
BROKER_FLOORS: list[set[str]] = [
    {"crash", "lease_keeper", "limits", "log", "token_bucket"},
    {"subscription"},
    {"config", "topic"},
    {"inspection", "registry"},
    {"upkeep"},
    {"recovery"},
    {"delivery"},
    {"publishing"},
    {"inbox"},
    {"deletion", "settlement"},
    {"services"},
    {"broker"},
    {"admin"},
    {"session"},
    {"server"},
]

# The same inside storage.
STORAGE_FLOORS: list[set[str]] = [
    {"blocking", "data_directory", "directory", "engine", "offsets"},
    {"encoding", "index", "lease", "removal", "schema"},
    {"inbox", "log"},
    {"archive_record", "catalog", "journal"},
    {"cleanup", "commit", "state"},
]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Every module of ours that a file names, wherever in it the import stands."""
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


def room_of(module: str, house: str = "escapement") -> str:
    """The folder or file of a house that a module is or stands in."""
    below = module.removeprefix(house).lstrip(".")
    return below.split(".")[0] or "__init__"


def upward(floors: list[set[str]], house: str) -> list[str]:
    """Imports inside a house that do not go down."""
    floor_of = {room: floor for floor, rooms in enumerate(floors) for room in rooms}
    inside = {name for name in MODULES if name == house or name.startswith(f"{house}.")}
    rooms = {room_of(name, house) for name in inside} - FACES
    assert rooms == set(floor_of), f"floors and rooms differ: {rooms ^ set(floor_of)}"
    found = []
    for module in inside:
        room = room_of(module, house)
        if room in FACES:
            continue
        for name in imports_of(MODULES[module]) & inside:
            target = room_of(name, house)
            if target == room or (target in FACES and house != "escapement"):
                continue
            if target in FACES or floor_of[target] >= floor_of[room]:
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


def test_no_file_imports_itself_in_a_circle() -> None:
    graph = {
        module: {name for name in imports_of(path) if name in MODULES and name != module}
        for module, path in MODULES.items()
    }
    # A package named by its members' imports ("from escapement.x import y") is not a step.
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
                    assert room_of(name) == "timewheel", f"{path}: {name}"


_STDLIB = {"bisect", "collections", "dataclasses", "heapq", "itertools", "typing"}
