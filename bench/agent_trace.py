"""Recorded calls of agents as a trace that ``kvreuse simulate`` reads.

    python bench/agent_trace.py FOLDER > trace.jsonl
    kvreuse simulate trace.jsonl --capacity 500,1000

FOLDER holds JSONL files; a line is a call, with ``timestamp`` (microseconds) and ``input`` (text).
Four characters pass for a token. Calls come in the order of their timestamps.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

CHARACTERS = 4  # for each token


def main() -> None:
    """Write the trace to standard output."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--block-tokens", type=int, default=16)
    args = parser.parse_args()
    calls: list[tuple[int, str]] = []
    for path in sorted(args.folder.glob("*.jsonl")):
        with path.open(encoding="utf-8") as file:
            calls += [(row["timestamp"], row["input"]) for row in map(json.loads, file)]
    calls.sort(key=lambda call: call[0])
    names: dict[tuple[int, str], int] = {}
    size = args.block_tokens * CHARACTERS
    for timestamp, words in calls:
        blocks: list[int] = []
        for start in range(0, len(words) - size + 1, size):
            before = blocks[-1] if blocks else -1
            blocks.append(names.setdefault((before, words[start : start + size]), len(names)))
        if blocks:
            row = {
                "timestamp": timestamp // 1000,
                "input_length": len(blocks) * args.block_tokens,
                "output_length": 0,
                "hash_ids": blocks,
            }
            sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
