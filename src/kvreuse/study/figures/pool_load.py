"""A load on one holder of keys and values, in a process of its own: resident and live bytes.

``python -m kvreuse.study.figures.pool_load '{"holder": "pool", "layout": [...], ...}'`` prints
JSON; ``layout`` are the arguments of ``KVLayout.uniform``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from kvreuse.kv.layout import KVLayout
from kvreuse.study.figures.holders import HOLDERS, row_of
from kvreuse.study.figures.running import resident_bytes

EVERY = 8
"""Rounds between two looks at the memory."""
SHORTEST = 8


def load(
    holder: str, layout: KVLayout, *, slots: int, longest: int, rounds: int
) -> dict[str, list[int]]:
    """Append to ``slots`` sequences in turn, ``rounds`` times; one that is long enough is replaced.

    Every sequence ends at a length drawn for it. Bytes are counted from before the first token.
    """
    random = np.random.default_rng(0)
    row = row_of(layout)
    start = resident_bytes()
    held = HOLDERS[holder](layout, slots * layout.pages_for(longest) * layout.page_size)
    sequences = [held.open() for _ in range(slots)]
    lengths, ends = [0] * slots, random.integers(SHORTEST, longest + 1, slots)
    found: dict[str, list[int]] = {
        "rounds": [],
        "live_bytes": [],
        "taken_bytes": [],
        "resident_bytes": [],
    }
    for number in range(1, rounds + 1):
        for slot in range(slots):
            if lengths[slot] == ends[slot]:
                held.close(sequences[slot])
                sequences[slot] = held.open()
                lengths[slot], ends[slot] = 0, random.integers(SHORTEST, longest + 1)
            held.append(sequences[slot], row)
            lengths[slot] += 1
        if number % EVERY == 0:
            found["rounds"].append(number)
            found["live_bytes"].append(sum(lengths) * layout.bytes_per_token)
            found["taken_bytes"].append(sum(map(held.taken, sequences)))
            found["resident_bytes"].append(max(resident_bytes() - start, 1))
    return found


def main(wanted: str) -> None:
    """Run the load that ``wanted`` describes, and print what was found."""
    options: dict[str, Any] = json.loads(wanted)
    layout = KVLayout.uniform(*options.pop("layout"))
    json.dump(load(options.pop("holder"), layout, **options), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
