"""The shape of the source tree: imports point downwards, files are small, test files hold tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "kvreuse"
MAX_LINES = 400

# A unit may import units of a lower rank, and itself. A new unit needs a place here. A module of a
# package may be a unit of its own: the longest name counts.
RANKS = {
    "errors": 0,
    "floats": 0,
    "alike": 0,
    "model.spec": 1,
    "kv": 2,
    "ops": 3,
    "model": 4,
    "simulate": 4,
    "structured_outputs": 4,
    "guide": 5,
    "config": 5,
    "outputs": 5,
    "sampling_params": 5,
    "plan": 6,
    "prefill": 5,
    "progress": 6,
    "prompts": 6,
    "explain": 6,
    "turns": 6,
    "metrics": 5,
    "request": 6,
    "sampling": 6,
    "detokenize": 6,
    "why": 7,
    "bounds": 7,
    "waiting": 7,
    "step": 7,
    "scheduler": 8,
    "batch": 7,
    "runner": 7,
    "answer": 7,
    "group": 8,
    "quality": 8,
    "engine": 9,
    "delta_stream": 6,
    "inbox": 6,
    "async_engine": 10,
    "llm": 10,
    "figures": 11,
    "__init__": 11,
    "server": 11,
    "cli": 12,
    "__main__": 13,
}

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


def unit_of(dotted: str) -> str | None:
    """The unit that a module, or a name in one, belongs to: ``kv.pool.PagePool`` to ``kv``."""
    parts = dotted.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in RANKS), None)


def dotted(path: Path) -> str:
    """``kv.pool`` for ``src/kvreuse/kv/pool.py``."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imported_units(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """(line, unit) of every import of something of kvreuse, wherever in the file it stands."""
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
            yield from ((node.lineno, unit) for unit in _unit_named(name))


def _unit_named(name: str) -> Iterator[str]:
    package, _, inside = name.partition(".")
    if package == PACKAGE.name:
        yield unit_of(inside) or "__init__"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_point_downwards(path: Path) -> None:
    unit = unit_of(dotted(path))
    assert unit, f"{relative(path)} has no rank: say in {Path(__file__).name} what it may import"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    upward = [
        f"line {line}: {unit} imports {other}"
        for line, other in imported_units(tree, path)
        if other != unit and RANKS[other] >= RANKS[unit]
    ]
    assert not upward


def test_an_upward_import_is_seen() -> None:
    source = """if True:
    from ..engine import Engine
import kvreuse.cli.app
from kvreuse import LLM
"""
    seen = imported_units(ast.parse(source), PACKAGE / "kv" / "pool.py")
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


def readme_tree() -> set[str]:
    """The files that the tree in README.md names: folders end in a slash, indents nest them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = text.split("## The source")[1].split("```")[1]
    files: set[str] = set()
    folders: list[str] = []
    for line in block.strip().splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.split(r" {2,}", line.strip())[0]
        if names.endswith("/"):
            folders[depth:] = [names]
        else:
            files |= {"".join(folders[:depth]) + name for name in names.split(", ")}
    return files


def test_the_readme_names_every_source_file() -> None:
    suffixes = {".py", ".pyi", ".cpp", ".h", ".inc"}
    sources = {
        relative(path)
        for folder in ("src", "native")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes and path.stat().st_size
    }
    assert readme_tree() == sources
