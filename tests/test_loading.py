"""Loading: progress is told, and memory follows what is served, not what a header claims."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from kvreuse import LLM, SamplingParams

from .model.gguf.gguf_files import write_tiny_llama

POOL = "256KiB"


def test_progress_goes_from_nothing_to_all(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "x.gguf", tied=False)
    seen: list[tuple[int, int]] = []
    with LLM(path, kv_cache_memory=POOL, progress=lambda done, total: seen.append((done, total))):
        pass
    assert seen == sorted(seen)
    assert seen[0][0] < seen[-1][0] == seen[-1][1]
    assert {total for _, total in seen} == {seen[-1][1]}


def test_a_claimed_context_takes_no_memory(tmp_path: Path) -> None:
    peaks, answers = [], []
    for context in (512, 512, 2**31 - 1):  # the first also pays for what is imported
        path = write_tiny_llama(tmp_path / "x.gguf", context=context)
        tracemalloc.start()
        with LLM(path, kv_cache_memory=POOL) as llm:
            [output] = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=300))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        answers.append(output.outputs[0].token_ids)
    assert answers[2] == answers[1]
    assert peaks[2] < peaks[1] + 100_000
