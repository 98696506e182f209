"""The shape of the source tree: imports point downwards, files are small, test files hold tests."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "kvreuse"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MAX_LINES = 400
MAX_FUNCTION_LINES = 60
MEDIAN_LINES = 80, 150
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)

# The house, from the cellar to the roof. A room may import what lies on lower shelves and, without
# going in circles, what stands beside it on its own.
SHELVES = (
    ("errors",),
    ("sizes", "shape", "config"),
    ("api",),
    ("text", "kv"),
    ("ops",),
    ("model",),
    ("engine", "plan"),
    ("load", "llm"),
    ("study", "server"),
    ("cli", "__init__"),
    ("__main__",),
)
RANKS = {room: rank for rank, shelf in enumerate(SHELVES) for room in shelf}

MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = sorted(
    path
    for folder in ("src", "native", "tests", "bench")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".cpp", ".hpp", ".h"}
)
TEST_FILES = sorted((ROOT / "tests").rglob("test_*.py"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def room_of(path: Path) -> str:
    """The module or package of the root that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_rooms(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """(line, room) of every import of something of kvreuse, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = path.relative_to(PACKAGE.parent).with_suffix("").parts[: -node.level]
                base = ".".join([*above, base] if base else above)
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, inside = name.partition(".")
            if package == PACKAGE.name:
                room = inside.partition(".")[0]
                yield node.lineno, room if room in RANKS else "__init__"


def test_every_room_has_its_place_on_a_shelf() -> None:
    entries = {path.stem for path in PACKAGE.iterdir() if path.suffix != ".typed"}
    assert entries - {"__pycache__"} == set(RANKS)


def test_the_root_is_small() -> None:
    packages = [path for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert len(packages) <= 11
    assert len(modules) <= 7


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_point_down_or_sideways(path: Path) -> None:
    room = room_of(path)
    upward = [
        f"line {line}: {room} imports {other}"
        for line, other in imported_rooms(ast.parse(path.read_text(encoding="utf-8")), path)
        if RANKS[other] > RANKS[room]
    ]
    assert not upward


def test_no_rooms_import_each_other_in_a_circle() -> None:
    below: dict[str, set[str]] = {room: set() for room in RANKS}
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        below[room_of(path)] |= {other for _, other in imported_rooms(tree, path)}
    for room, others in below.items():
        others.discard(room)
    tuple(TopologicalSorter(below).static_order())  # raises CycleError, naming it


def test_an_import_is_seen_wherever_it_stands() -> None:
    source = """if True:
    from ..engine import Engine
import kvreuse.cli.app
from kvreuse import LLM
"""
    seen = imported_rooms(ast.parse(source), PACKAGE / "kv" / "pool.py")
    assert sorted(seen) == [(2, "engine"), (3, "cli"), (4, "__init__")]


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_files_stay_small(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{lines} lines: split it"


@pytest.mark.parametrize("path", TEST_FILES, ids=relative)
def test_every_test_file_holds_a_test(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    assert any(node.name.startswith("test_") for node in functions)


@pytest.mark.parametrize("path", [p for p in MODULES if p.stat().st_size], ids=relative)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", [p for p in SOURCES if p.suffix == ".py"], ids=relative)
def test_functions_stay_small(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTION)]
    lengths = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    long = {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES}
    assert not long, "split them"


def test_source_files_are_neither_scraps_nor_heaps() -> None:
    """The median file is worth opening: one idea, not a piece of one."""
    files = [path for path in MODULES if path.name != "__init__.py"]
    median = statistics.median(len(path.read_text("utf-8").splitlines()) for path in files)
    assert MEDIAN_LINES[0] <= median <= MEDIAN_LINES[1]


def documented_tree(document: str) -> set[str]:
    """The files that the tree in docs/architecture.md names: indents nest folders, which end in a
    slash; the line of a package is about its ``__init__.py``."""
    files: set[str] = set()
    folders: list[str] = []
    for line in document.split("## The source")[1].split("```")[1].strip().splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.split(r" {2,}", line.strip())[0].split(", ")
        folders[depth:] = []
        if names[0].endswith("/"):
            folders += names
            names = ["__init__.py"] if folders[0].startswith("src") else []
        files |= {"".join([*folders, name]) for name in names}
    return files


def test_every_source_file_is_documented() -> None:
    suffixes = {".py", ".pyi", ".cpp", ".h", ".inc"}
    sources = {
        relative(path)
        for folder in ("src", "native")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes and path.stat().st_size
    }
    assert documented_tree(ARCHITECTURE) == sources


def test_every_package_is_documented() -> None:
    """A line of the table says what each room knows."""
    table = ARCHITECTURE.split("## The packages")[1].split("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if re.match(r"\| \d", line)]
    shelves = {
        room: int(shelf) for _, shelf, rooms, *_ in rows for room in re.findall(r"`(\w+)`", rooms)
    }
    assert shelves == {room: rank + 1 for room, rank in RANKS.items()}
