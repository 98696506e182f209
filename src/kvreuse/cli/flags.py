"""Command-line flags: those that commands share, and those made from documented dataclasses.

The fields of a dataclass are the one source of the flags' names, defaults and help.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_type_hints

import typer

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A GGUF file, or a name that pull knows.")
]
"""The argument of a command that works on a model."""
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")]
"""The flag for programs that read what a command found."""


@dataclasses.dataclass(frozen=True)
class Flag:
    """What a flag has of its own; everything left out is the field's."""

    type: Any = None
    metavar: str | None = None
    default: Any = ...
    help: str | None = None


@dataclasses.dataclass(frozen=True)
class FlagGroup:
    """A flag for each field of ``source``, under one heading of ``--help``.

    The values arrive in the command as one dictionary, in the parameter ``name``. ``skip`` names
    fields without a flag, ``special`` what some flags have of their own.
    """

    name: str
    heading: str
    source: type
    skip: frozenset[str] = frozenset()
    special: Mapping[str, Flag] = dataclasses.field(default_factory=dict)

    def fields(self) -> list[dataclasses.Field[Any]]:
        """The fields that have a flag, in order."""
        return [field for field in dataclasses.fields(self.source) if field.name not in self.skip]

    def parameters(self) -> list[inspect.Parameter]:
        """The keyword-only parameters that typer reads."""
        types, docs = get_type_hints(self.source), field_docs(self.source)
        return [self._parameter(f, types[f.name], docs[f.name]) for f in self.fields()]

    def _parameter(
        self, field: dataclasses.Field[Any], field_type: Any, doc: str
    ) -> inspect.Parameter:
        flag = self.special.get(field.name, Flag())
        name = "--" + field.name.replace("_", "-")
        if field.default is True:  # the flag that is of use is the one that turns it off
            name = f"{name}/--no-{name[2:]}"
        option = typer.Option(
            name,
            help=flag.help or doc,
            metavar="" if field_type is bool else flag.metavar,
            rich_help_panel=self.heading,
        )
        return inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default if flag.default is ... else flag.default,
            annotation=Annotated[flag.type or field_type, option],
        )


def with_flags(*groups: FlagGroup) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of ``groups``; it takes one dictionary of values for each group."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            for group in groups:
                values[group.name] = {f.name: values.pop(f.name) for f in group.fields()}
            command(**values)

        names = {group.name for group in groups}
        signature = inspect.signature(command, eval_str=True)
        parameters = [p for p in signature.parameters.values() if p.name not in names]
        for group in groups:
            parameters += group.parameters()
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def field_docs(source: type) -> dict[str, str]:
    """The string below each field of a class, as help: one line, without markup."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(source))).body
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            docs[field.target.id] = _help(below)
    return docs


def _help(node: ast.stmt) -> str:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return ""
    words = " ".join(str(node.value.value).split()).replace("``", "")
    # What None means in Python is leaving the flag out here; brackets are markup to typer.
    return re.sub(r"\bNone: ", "left out: ", words).replace("[", r"\[")
