"""Run by a test, in a process of its own: an engine with every page and every buffer in use.

Prints two numbers, bytes each: what its plan says, and what the system counts as resident.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kvreuse import LLM, SamplingParams


def main(model: str, kv_cache_memory: str) -> None:
    """Fill an engine and measure it."""
    with LLM(model, kv_cache_memory=kv_cache_memory) as llm:
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        # As many sequences as may run, all of which decode at once; then a step of the most rows.
        many = [[100 + index, 5, 6, 7] for index in range(llm.config.max_num_seqs)]
        llm.generate(many, params)
        llm.generate(list(range(1000, 1700)), params)
        llm.pool.data.fill(1)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        print(llm.memory.total, pages * os.sysconf("SC_PAGE_SIZE"))


if __name__ == "__main__":
    main(*sys.argv[1:])
