"""kvreuse, as a program of one thread uses it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from importlib import metadata

from kvreuse import LLM, SamplingParams
from kvreuse.api.outputs import RequestOutput
from kvreuse.kv.layout import KVLayout
from kvreuse.model.open import open_checkpoint
from kvreuse.ops.native import ISA_VARIABLE, available_isas
from peers.adapter import STEP_TOKENS, Adapter, Answer, Setup


def _version() -> str:
    try:
        return metadata.version("kvreuse")
    except metadata.PackageNotFoundError:
        return "(not installed, out of its source tree)"


class Engine(Adapter):
    """``LLM.generate`` with prefix caching."""

    version = _version()

    def __init__(self, setup: Setup) -> None:
        """Load the model; the pool has exactly the capacity asked for."""
        with open_checkpoint(setup.model) as checkpoint:
            layout = KVLayout.of(checkpoint.shape)
        self._scores = setup.scores
        self._llm = LLM(
            setup.model,
            kv_cache_memory=setup.capacity * layout.bytes_per_token,
            max_model_len=setup.max_len,
            max_num_seqs=setup.max_seqs,
            max_num_batched_tokens=STEP_TOKENS,
            threads=setup.threads,
            enable_prefix_caching=setup.reuse,
        )
        isa = os.environ.get(ISA_VARIABLE) or available_isas()[0]
        self.settings = f"LLM.generate; the {isa} path; keys and values in bf16"

    def answer(self, prompts: Sequence[list[int]], max_tokens: int) -> list[Answer]:
        """All in one call."""
        params = SamplingParams(
            temperature=0,
            ignore_eos=True,
            max_tokens=max_tokens,
            logprobs=0 if self._scores else None,
        )
        start = time.perf_counter()
        return [_answer(output, start) for output in self._llm.generate(list(prompts), params)]

    def close(self) -> None:
        """Give the memory back."""
        self._llm.close()


def _answer(output: RequestOutput, start: float) -> Answer:
    (completion,) = output.outputs
    ids = list(completion.token_ids)
    logprobs = completion.logprobs or []
    first = output.metrics.first_token_time
    assert first is not None
    return Answer(
        ids=ids,
        scores=[by_id[token].logprob for by_id, token in zip(logprobs, ids, strict=False)],
        first=first - start,
        last=output.metrics.finished_time - start,
    )
