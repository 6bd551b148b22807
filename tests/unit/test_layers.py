"""Imports go downward only: style.md, point 3."""

from __future__ import annotations

import ast
from pathlib import Path

import escapement

ROOT = Path(escapement.__file__).parent

# Lowest first. Packages on one floor do not import each other.
FLOORS: list[set[str]] = [
    {"errors", "clock"},
    {"message", "dedup", "names", "durations", "position", "recurrence"},
    {"timewheel", "traits", "groupnames"},
    {"protocol", "storage"},
    {"client", "broker"},
    {"sync"},
    {"testing"},
    {"bench"},
    {"cli"},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# The package's face hands names on and stands above what it names.
FACES = {"__init__", "__main__"}


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


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(module) for module in MODULES} - FACES
    assert rooms <= set(FLOOR_OF), f"give these a floor: {rooms - set(FLOOR_OF)}"


def test_imports_go_downward_only() -> None:
    upward = []
    for module, path in MODULES.items():
        room = room_of(module)
        if room in FACES:
            continue
        for name in imports_of(path):
            target = room_of(name)
            if target == room or name not in MODULES:
                continue
            if target in FACES or FLOOR_OF[target] >= FLOOR_OF[room]:
                upward.append(f"{module} imports {name}")
    assert not upward, "\n".join(upward)


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
