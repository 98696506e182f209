"""Templates that would run for ever or fill the memory end soon, and others do not notice."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import jinja2
import pytest

from kvreuse.text import sandbox
from kvreuse.text.sandbox import BoundedEnvironment, BoundsError, bounded

GROWTH = 512 << 20  # bytes of address space that a template may take on top


def render(source: str) -> str:
    return bounded(lambda: BoundedEnvironment().load(source).render(messages=[{"role": "user"}]))


def growing(step: str, start: str = "'aaaaaaaa'") -> str:
    """A template that replaces ``ns.x`` by ``step`` sixty times."""
    return (
        f"{{% set ns = namespace(x={start}) %}}"
        f"{{% for i in range(60) %}}{{% set ns.x = {step} %}}{{% endfor %}}"
    )


ENDLESS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "{% for i in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "{% for i in range(99999) %}{{ range(99999) | map('string') | list | length }}{% endfor %}",
]
HUNGRY = [
    "{{ 'x' * 10 ** 10 }}",
    "{{ [0] * 10 ** 10 }}",
    "{{ 10 ** 10000 }}",
    "{{ 'x' | center(10 ** 9) }}",
    "{{ 'x'.ljust(10 ** 9) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ 'x\\ny' | indent(10 ** 9) }}",
    growing("ns.x ~ ns.x"),
    growing("ns.x + ns.x"),
    growing("ns.x + ns.x", start="[1]"),
    growing("ns.x * ns.x", start="3"),
    growing("[ns.x, ns.x] | join"),
    growing("ns.x | replace('a', 'aaaaaaaaaaaa')"),
    growing("ns.x.replace('a', 'aaaaaaaaaaaa')"),
    growing("'%s%s' % (ns.x, ns.x)"),
    growing("'%s%s' | format(ns.x, ns.x)"),
    growing("'{}{}'.format(ns.x, ns.x)"),
    growing("[ns.x, ns.x]") + "{{ ns.x }}",
    growing("[ns.x, ns.x]") + "{{ ns.x | tojson }}",
    growing("{'k': ns.x, 'l': ns.x}") + "{{ ns.x | string }}",
    growing("[ns.x, ns.x]") + "{{ ns }}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
    "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    + "x" * 10000
    + "{% endmacro %}{{ f(40) }}",
    "{% set b = 'a' * 30000000 %}{{ range(99999) | map('replace', '0', b) | join }}",
    "{% set b = 'a' * 30000000 %}{{ range(99999) | join(b) }}",
    "x" * (sandbox.MAX_SOURCE + 1),
]


@pytest.mark.parametrize("source", ENDLESS)
def test_endless_templates_end(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.2)
    start = time.perf_counter()
    with pytest.raises(BoundsError, match="runs for more than"):
        render(source)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("source", HUNGRY, ids=lambda source: source[:60])
def test_hungry_templates_stay_small(source: str) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + GROWTH, before[1]))
    try:
        with pytest.raises(BoundsError):
            render(source)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    "source",
    [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
        "{{" + "(" * 100000 + "1" + ")" * 100000 + "}}",
        "{% if x %}" * 3000 + "{% endif %}" * 3000,
    ],
    ids=lambda source: source[:40],
)
def test_deep_templates_end_in_a_recursion_error(source: str) -> None:
    with pytest.raises(RecursionError):
        render(source)


def test_a_long_conversation_is_no_problem() -> None:
    source = (
        "{% for m in messages %}{{ '<' ~ m.role ~ '>' + m.content.split('|')[-1].strip() }}"
        "{{ m.content | trim | replace('\n', '\n  ') }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "a|b\n" * 1000} for _ in range(1000)]
    template = bounded_template(source)
    text = bounded(lambda: template.render(messages=messages))
    assert text.count("<user>") == 1000
    assert len(text) > 4_000_000


def bounded_template(source: str) -> jinja2.Template:
    loaded: list[jinja2.Template] = []

    def load() -> str:
        loaded.append(BoundedEnvironment().load(source))
        return ""

    bounded(load)
    return loaded[0]


def test_the_bounds_are_of_one_rendering() -> None:
    assert [render("{{ 'x' * 30000000 }}")[:2] for _ in range(20)] == ["xx"] * 20
