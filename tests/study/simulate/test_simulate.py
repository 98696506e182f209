"""Replays of traces: what is read, what MIN is, and what the engine's cache makes of it."""

from __future__ import annotations

import itertools
import json
import random
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvreuse.errors import ConfigError, TraceError
from kvreuse.study.simulate.curve import curve_svg
from kvreuse.study.simulate.replay import min_hits, replay
from kvreuse.study.simulate.trace import Trace, TracedRequest, read_trace, session_ends

BLOCK = 8


def write(path: Path, prompts: list[tuple[list[int], int]]) -> Path:
    """A trace of (hashes, tokens), the last one first in the file."""
    rows = [
        {"timestamp": at, "input_length": tokens, "output_length": 1, "hash_ids": hashes}
        for at, (hashes, tokens) in enumerate(prompts)
    ]
    path.write_text("\n".join(json.dumps(row) for row in reversed(rows)) + "\n\n")
    return path


def trace_of(*prompts: list[int]) -> Trace:
    """Of full blocks; blocks of a name are the same wherever they stand, as in a tree they must."""
    return Trace(tuple(TracedRequest(tuple(p), BLOCK * len(p)) for p in prompts), BLOCK)


def test_a_trace_is_read_in_the_order_of_time(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.jsonl", [([5, 6], 14), ([5, 7, 6], 20), ([9], 8)]))
    assert trace.block_tokens == BLOCK
    assert [request.num_tokens for request in trace.requests] == [14, 20, 8]
    one, two, three = (request.blocks for request in trace.requests)
    assert one[0] == two[0]
    assert len({*one, *two, *three}) == trace.num_blocks == 5  # 6 after 7 is not 6 after 5
    assert trace.tokens(trace.requests[1]).tolist() == [0, 8, 16, 20]
    assert trace.num_tokens == 42


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "holds no requests"),
        ("{", "line 1: not JSON"),
        ("[]", "line 1: not an object"),
        ('{"timestamp": 1, "hash_ids": ["a"], "input_length": 1}', "must be a list of integers"),
        ('{"timestamp": 1, "hash_ids": [1, 2], "input_length": 1}', "at least one a block, got 1"),
        ('{"timestamp": "x", "hash_ids": [1], "input_length": 1}', "timestamp must be a number"),
        (
            '{"timestamp": 1, "hash_ids": [1], "input_length": 9}\n'
            '{"timestamp": 1, "hash_ids": [1, 2], "input_length": 4}',
            "no size of a block fits all prompts: one needs blocks of at least 9 tokens, "
            "another of at most 3",
        ),
    ],
)
def test_what_is_no_trace_is_said_in_one_line(tmp_path: Path, lines: str, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(lines)
    with pytest.raises(TraceError, match=message) as error:
        read_trace(path)
    assert "\n" not in str(error.value)


def test_a_session_ends_where_nobody_extends_its_last_full_block() -> None:
    requests = [([1, 2], 16), ([1, 2, 3], 21), ([1, 4], 16), ([1, 2, 5, 6], 32)]
    trace = Trace(tuple(TracedRequest(tuple(b), n) for b, n in requests), BLOCK)
    assert session_ends(trace) == [False, False, True, True]


def best(trace: Trace, capacity: int) -> int:
    """The most blocks that can be reused, by trying everything that can be kept."""
    prompts = [request.blocks for request in trace.requests]

    @cache
    def most(number: int, kept: frozenset[int]) -> int:
        if number == len(prompts):
            return 0
        found = len(list(itertools.takewhile(kept.__contains__, prompts[number])))
        there = kept | set(prompts[number])
        choices = itertools.combinations(sorted(there), min(capacity, len(there)))
        return found + max(most(number + 1, frozenset(choice)) for choice in choices)

    return most(0, frozenset())


@pytest.mark.parametrize("seed", range(30))
def test_min_is_the_best_there_is(seed: int) -> None:
    choose = random.Random(seed)
    tree = [[1, 2, 3], [1, 2, 4], [1, 5], [6, 7], [6, 8, 9]]
    prompts = [choose.choice(tree)[: choose.randint(1, 3)] for _ in range(7)]
    trace = trace_of(*prompts)
    for capacity in (1, 2, 4):
        assert min_hits(trace, capacity) == BLOCK * best(trace, capacity)


@pytest.mark.parametrize("seed", range(10))
def test_a_replay_is_lru_and_never_better_than_min(seed: int) -> None:
    choose = random.Random(seed)
    prompts = []
    for _ in range(200):
        branch = choose.randint(1, 6)
        prompts.append([0, *(10 * branch + at for at in range(choose.randint(1, 5)))])
    trace = trace_of(*prompts)
    for capacity in (6, 12, 20):
        stamps: dict[int, tuple[int, int]] = {}
        hits = 0
        for number, prompt in enumerate(prompts):
            hits += len(list(itertools.takewhile(stamps.__contains__, prompt)))
            for depth, block in enumerate(prompt):
                stamps[block] = number, -depth
            while len(stamps) > capacity:
                del stamps[min(stamps, key=lambda block: stamps[block])]
        assert replay(trace, capacity, "lru") == hits * BLOCK
        for policy in ("lru", "hit-density"):
            assert replay(trace, capacity, policy) <= min_hits(trace, capacity)


def test_told_ends_leave_room_for_others() -> None:
    """Two conversations grow in turn while one-shot prompts pass by."""
    prompts: list[list[int]] = []
    for turn in range(30):
        prompts += [[1000 * chat + at for at in range(2 * turn + 2)] for chat in (0, 1)]
        prompts += [[10_000 + 100 * turn + 10 * shot + at for at in range(8)] for shot in range(9)]
    trace = trace_of(*prompts)
    told = replay(trace, 150, "lru", ends=session_ends(trace))
    assert told == min_hits(trace, 150) > 1.2 * replay(trace, 150, "lru")


def mixed(seed: int, requests: int) -> Trace:
    """Prompts that come back among many that never do: what LRU is bad at."""
    choose = random.Random(seed)
    prompts = []
    for number in range(requests):
        first = 100_000 + 10 * number
        if choose.random() < 0.3:
            first = 10 * choose.randint(0, 60)
        prompts.append([first + at for at in range(6)])
    return trace_of(*prompts)


def test_what_is_learned_beats_lru_where_most_prompts_come_once() -> None:
    trace = mixed(0, 4000)
    lru, learned = (replay(trace, 400, policy) for policy in ("lru", "hit-density"))
    assert learned > 1.5 * lru


@pytest.mark.parametrize("capacity", [40, 200])
def test_what_is_learned_is_no_worse_than_lru_on_growing_conversations(capacity: int) -> None:
    """Agents: each call extends the last one of its session, a few sessions at a time."""
    choose = random.Random(0)
    lengths = dict.fromkeys(range(4), 2)
    prompts, session = [], 4
    for _ in range(2500):
        one = choose.choice(list(lengths))
        lengths[one] += choose.randint(0, 2)
        prompts.append([1000 * one + at for at in range(lengths[one])])
        if lengths[one] > 30:
            del lengths[one]
            lengths[session] = 2
            session += 1
    trace = trace_of(*prompts)
    assert replay(trace, capacity, "hit-density") >= 0.98 * replay(trace, capacity, "lru")


def test_a_prompt_of_more_blocks_than_there_are_and_an_empty_one() -> None:
    trace = trace_of(list(range(9)), [], list(range(9)))
    assert replay(trace, 4, "lru") == 4 * BLOCK
    with pytest.raises(ConfigError, match="at least one block, got 0"):
        replay(trace, 0, "lru")


def test_a_curve_is_svg_with_a_line_a_name() -> None:
    svg = curve_svg("a < b", [1000, 3000], {"lru": [0.1, 0.2], "MIN": [0.2, 0.21]})
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    lines = root.findall(f"{space}polyline")
    heights = [float(line.attrib["points"].split()[-1].split(",")[1]) for line in lines]
    assert len(lines) == 2
    assert heights[1] < heights[0]  # more is higher
    words = [text.text for text in root.findall(f"{space}text")]
    assert {"a < b", "1,000", "3,000", "lru 20.0%", "MIN 21.0%"} <= set(words)
    assert "prefers-color-scheme: dark" in svg
    ElementTree.fromstring(curve_svg("one", [5], {"lru": [0.0]}))
