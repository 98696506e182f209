"""Flags are the fields of a dataclass: names, defaults and help from one place."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kvreuse.cli.flags import Flag, FlagGroup, field_docs, with_flags
from kvreuse.cli.run import ENGINE, SAMPLING


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a test."""

    hidden: int = 7
    """Has no flag."""
    page_size: int = 32
    """Tokens in a page;
    a multiple of ``32``."""
    threads: int | None = None
    """Threads; None: one a core, [1, 64]."""
    quick: bool = False
    """Be quick."""
    careful: bool = True
    """Be careful."""


GROUP = FlagGroup(
    name="settings",
    heading="Settings",
    source=Settings,
    skip=frozenset({"hidden"}),
    special={"page_size": Flag(default=64)},
)


FLAGS = {"quick": False, "careful": True}


def parse(*arguments: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def command(name: str, *, settings: dict[str, Any]) -> None:
        seen.update(settings, name=name)

    app = typer.Typer()
    app.command()(with_flags(GROUP)(command))
    result = CliRunner().invoke(app, ["model", *arguments])
    assert result.exit_code == 0, result.output
    return seen


def test_defaults_are_the_fields_unless_the_flag_has_its_own() -> None:
    assert parse() == {"name": "model", "page_size": 64, "threads": None, **FLAGS}


def test_values_arrive_with_the_fields_names_and_types() -> None:
    seen = parse("--page-size", "96", "--threads", "3", "--quick", "--no-careful")
    changed = {"quick": True, "careful": False}
    assert seen == {"name": "model", "page_size": 96, "threads": 3, **changed}
    assert parse("--careful")["careful"] is True


def test_help_is_the_fields_docstring_in_one_line_without_markup() -> None:
    assert field_docs(Settings) == {
        "hidden": "Has no flag.",
        "page_size": "Tokens in a page; a multiple of 32.",
        "threads": r"Threads; left out: one a core, \[1, 64].",
        "quick": "Be quick.",
        "careful": "Be careful.",
    }


@pytest.mark.parametrize("group", [SAMPLING, ENGINE], ids=lambda group: str(group.name))
def test_every_field_has_a_documented_flag_or_is_skipped_by_name(group: FlagGroup) -> None:
    docs = field_docs(group.source)
    names = {field.name for field in dataclasses.fields(group.source)}
    assert names == {field.name for field in group.fields()} | group.skip
    assert group.special.keys() <= names - group.skip
    assert all(docs[field.name] for field in group.fields())
