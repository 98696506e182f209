"""A Jinja2 sandbox with bounds, for templates of model files, which anybody may have written.

Jinja2's sandbox keeps a template away from Python's internals, but it may still run for ever or
fill the memory. Here all loops, calls, filters and operators check a clock, the size of each value
is taken from a budget, and operations that multiply sizes (``*``, ``replace``, ``center``) are
refused before they are computed if their result could be too large.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_SECONDS = 5.0
MAX_SIZE = 1 << 25  # characters of one value: a prompt of some 8 million tokens
ITEM_SIZE = 32  # the size of an item of a list, besides its own characters
MAX_TOTAL = 1 << 28  # of all values that a template computes
MAX_PRODUCT = 1 << 27  # of the sizes of a call's arguments
MAX_BITS = 1 << 12  # of an integer
MAX_SOURCE = 1 << 20  # characters of a template

_WIDE_FORMAT = re.compile(r"\*|\d{6}")
T = TypeVar("T")


class BoundsError(jinja2.TemplateError):
    """A template takes too long, or needs too much memory."""


@dataclass
class _Budget:
    """The time and the memory that one rendering may still use."""

    deadline: float  # on the monotonic clock
    left: int = MAX_TOTAL

    def spend(self, size: int) -> None:
        self.left -= size
        if size > MAX_SIZE or self.left < 0:
            raise BoundsError("makes values that are too large")
        if time.monotonic() > self.deadline:
            raise BoundsError(f"runs for more than {MAX_SECONDS:.0f} seconds")

    def spend_on(self, value: T) -> T:
        self.spend(_size(value))
        return value


_budget: ContextVar[_Budget] = ContextVar("budget")


def bounded(function: Callable[[], str]) -> str:
    """Call ``function``, which loads or renders templates, within one budget."""
    token = _budget.set(_Budget(time.monotonic() + MAX_SECONDS))
    try:
        return function()
    finally:
        _budget.reset(token)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The environment of chat templates, with blocks trimmed. Use it within ``bounded``."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
        )
        del self.globals["lipsum"]
        guarded = {name: _guarded(function) for name, function in self.filters.items()}
        self.filters = guarded | {"_paced": _paced, "_joined": _joined, "_printed": _printed}

    def load(self, source: str) -> jinja2.Template:
        """Compile a template so that its loops, joins and prints use the budget."""
        if len(source) > MAX_SOURCE:
            raise BoundsError(f"is longer than {MAX_SOURCE} characters")
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filter("_paced", loop.iter)
        _replace_joins(tree)
        for output in list(tree.find_all(nodes.Output)):
            output.nodes = [_filter("_printed", node) for node in output.nodes]
        return jinja2.Template.from_code(self, self.compile(tree), dict(self.globals))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An arithmetic operation, unless its result would be too large."""
        _check_operation(operator, left, right)
        return _budget.get().spend_on(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call of a method, a global or a macro. A macro's own operations are bounded already."""
        if isinstance(function, Macro):
            _budget.get().spend(1)
        else:
            method = getattr(function, "__wrapped__", function)
            _check_arguments(method, getattr(method, "__self__", None), *args, *kwargs.values())
        result = super().call(context, function, *args, **kwargs)
        return result if isinstance(result, Namespace) else _budget.get().spend_on(result)


class GenerationTag(Extension):
    """``{% generation %}`` marks an answer for training; in a prompt, only its content counts."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _filter(name: str, node: nodes.Node) -> nodes.Filter:
    """The expression ``node | name``; text between tags becomes a constant first."""
    if isinstance(node, nodes.TemplateData):
        node = nodes.Const(node.data, lineno=node.lineno)
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)


def _replace_joins(node: nodes.Node) -> None:
    """Turn every ``a ~ b`` below a node into a filter of a list, which checks the sizes."""
    for child in node.iter_child_nodes():
        _replace_joins(child)
    for field, value in list(node.iter_fields()):
        if isinstance(value, list):
            value[:] = map(_without_join, value)
        else:
            setattr(node, field, _without_join(value))


def _without_join(node: Any) -> Any:
    if isinstance(node, nodes.Concat):
        return _filter("_joined", nodes.List(node.nodes, lineno=node.lineno))
    return node


@jinja2.pass_context  # a filter that takes the context is not evaluated while compiling
def _paced(_context: Context, items: Iterable[Any]) -> Iterator[Any]:
    """The items of a loop, with a check of the clock before each."""
    for item in items:
        _budget.get().spend(1)
        yield item


@jinja2.pass_context
def _printed(_context: Context, value: Any) -> str:
    _budget.get().spend_on(value)
    return str(value)


@jinja2.pass_context
def _joined(_context: Context, values: list[Any]) -> str:
    _budget.get().spend_on(values)
    return "".join(map(str, values))


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that checks its arguments, and whose results use the budget."""

    @functools.wraps(function)  # keeps the mark that says whether Jinja2 passes a context
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _check_arguments(function, *args, *kwargs.values())
        return _budget.get().spend_on(function(*args, **kwargs))

    return guarded


def _check_operation(operator: str, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length(), right.bit_length()
        wanted = {"*": sum(bits), "**": bits[0] * abs(right)}.get(operator, 0)
        if wanted > MAX_BITS:
            raise BoundsError(f"computes a number of more than {MAX_BITS} bits")
    elif operator == "*":
        _check_product(left, right)
    elif operator == "%":
        _check_format(left)
        _check_product(right)


def _check_arguments(function: Callable[..., Any], *values: Any) -> None:
    if getattr(function, "__name__", "") in {"format", "format_map", "do_format"}:
        _check_format(next(iter(values), None))
    _check_product(*values)


def _check_product(*values: Any) -> None:
    sizes = [abs(value) if isinstance(value, int) else _size(value) for value in values]
    if max(sizes) > MAX_SIZE or math.prod(max(1, size) for size in sizes) > MAX_PRODUCT:
        raise BoundsError("computes with values that are too large")


def _check_format(layout: Any) -> None:
    if isinstance(layout, str) and _WIDE_FORMAT.search(layout):
        raise BoundsError("formats to a width that is variable or too large")


def _size(value: Any) -> int:
    """The characters and items of a value and of all in it; stops counting above ``MAX_SIZE``."""
    size, stack = 0, [value]
    while stack and size <= MAX_SIZE:
        item = stack.pop()
        if isinstance(item, (str, bytes, range)):
            size += len(item)
        elif isinstance(item, (list, tuple, set, frozenset, dict)):
            size += ITEM_SIZE * len(item)
            stack.extend(item)
            if isinstance(item, dict):
                stack.extend(item.values())
        elif isinstance(item, Iterator):
            size += MAX_RANGE  # of unknown length, but none can be longer
        elif isinstance(item, Namespace):
            raise BoundsError("prints a namespace or passes it on")
    return size
