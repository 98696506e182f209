"""``kvreuse simulate``: what a cache would reuse of a trace, at any size, without a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from kvreuse.cli import terminal
from kvreuse.cli.flags import AsJson
from kvreuse.cli.terminal import progress, show_table
from kvreuse.config import EVICTION_POLICIES
from kvreuse.errors import ConfigError
from kvreuse.study.simulate.curve import curve_svg
from kvreuse.study.simulate.replay import min_hits, replay
from kvreuse.study.simulate.trace import Trace, read_trace, session_ends

Policy = Enum("Policy", {name: name for name in EVICTION_POLICIES}, type=str)  # type: ignore[misc]


_DEFAULT = Policy(EVICTION_POLICIES[0])


class SessionEnds(str, Enum):
    """Whether the cache is told which requests end their session."""

    NONE = "none"
    INFER = "infer"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Token hit rates at one capacity: 0 to 1."""

    capacity: int
    rates: dict[str, float]


def simulate(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A trace: Mooncake's JSONL, one request a line.")
    ],
    *,
    capacity: Annotated[
        str, typer.Option(metavar="N[,N...]", help="Blocks that the cache has room for.")
    ],
    policy: Annotated[Policy, typer.Option(help="Which blocks go first.")] = _DEFAULT,
    ends: Annotated[
        SessionEnds,
        typer.Option(
            "--session-ends",
            help="infer: a request whose last full block no later one extends ends its session, "
            "and the cache is told.",
        ),
    ] = SessionEnds.NONE,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the hit rates as a curve.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a trace through the index and the eviction policies that the engine runs on.

    Beside the policy stand LRU and MIN, the most that any policy could reuse that knew what comes.

    \b
      kvreuse simulate conversation_trace.jsonl --capacity 1000,3000,10000
      kvreuse simulate trace.jsonl --capacity 3000 --policy lru --session-ends infer --json
      kvreuse simulate trace.jsonl --capacity 500,1000,2000,4000,8000 --svg curve.svg
    """
    capacities = _capacities(capacity)
    with progress(f"Reading {trace.name}"):
        requests = read_trace(trace)
    rows = _simulate(requests, capacities, policy.value, ends)
    if svg is not None:
        names = list(rows[0].rates)
        title = f"Tokens reused, {trace.name}"
        rates = {name: [row.rates[name] for row in rows] for name in names}
        svg.write_text(curve_svg(title, capacities, rates), encoding="utf-8")
    if as_json:
        terminal.write_json(_as_json(trace, requests, rows, ends))
    else:
        _show(requests, rows)


def _simulate(trace: Trace, capacities: list[int], policy: str, ends: SessionEnds) -> list[Row]:
    """The rates at each capacity, with a bar."""
    told = session_ends(trace) if ends is SessionEnds.INFER else None
    policies = list(dict.fromkeys((policy, "lru")))
    total = len(capacities) * (len(policies) + 1) * len(trace.requests)
    rows, done = [], 0
    with progress("Replaying") as report:

        def stage() -> Callable[[int, int], None] | None:
            base = done
            return None if report is None else lambda part, _: report(base + part, total)

        for capacity in capacities:
            hits: dict[str, int] = {}
            for name in policies:
                hits[name] = replay(trace, capacity, name, ends=told, progress=stage())
                done += len(trace.requests)
            hits["MIN"] = min_hits(trace, capacity, stage())
            done += len(trace.requests)
            tokens = max(1, trace.num_tokens)
            rows.append(Row(capacity, {name: count / tokens for name, count in hits.items()}))
    return rows


def _capacities(words: str) -> list[int]:
    """Ascending numbers of blocks. ConfigError for what is none."""
    try:
        numbers = sorted({int(word.replace("_", "")) for word in words.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1:
        raise ConfigError(
            f"--capacity must be one number of blocks or several with commas, got {words!r}"
        )
    return numbers


def _show(trace: Trace, rows: Sequence[Row]) -> None:
    """A table: the rates, and what part of MIN they are."""
    requests = terminal.plural(len(trace.requests), "request")
    blocks = f"{trace.num_blocks:,} different blocks of {trace.block_tokens} tokens"
    terminal.say(f"{requests}, {trace.num_tokens:,} tokens, {blocks}", "dim")
    headings = ["CAPACITY", "TOKENS"]
    for name in rows[0].rates:
        headings += [name.upper()] if name == "MIN" else [name.upper(), "OF MIN"]
    cells = [[f"{row.capacity:,}", f"{row.capacity * trace.block_tokens:,}"] for row in rows]
    for line, row in zip(cells, rows, strict=True):
        for name, rate in row.rates.items():
            line.append(f"{rate:.1%}")
            if name != "MIN":
                line.append(_part(rate, row.rates["MIN"]))
    show_table(headings, cells, left=())


def _part(rate: float, most: float) -> str:
    return f"{rate / most:.1%}" if most else "-"


def _as_json(path: Path, trace: Trace, rows: Sequence[Row], ends: SessionEnds) -> dict[str, Any]:
    return {
        "trace": str(path),
        "requests": len(trace.requests),
        "tokens": trace.num_tokens,
        "blocks": trace.num_blocks,
        "block_tokens": trace.block_tokens,
        "session_ends": ends.value,
        "hit_rates": [{"capacity": row.capacity, **row.rates} for row in rows],
    }
