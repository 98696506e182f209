"""OpenVINO GenAI: its continuous batching pipeline, which reads some GGUF files itself."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import openvino
import openvino_genai as genai

from peers.adapter import STEP_TOKENS, Adapter, Answer, Setup

BLOCK = 32
"""Tokens in a block of its cache on a CPU."""


class Engine(Adapter):
    """``add_request`` and ``step``, so that the first token is seen when it is there."""

    version = str(genai.get_version())
    settings = (
        "ContinuousBatchingPipeline on the GGUF file; prefix caching; keys and values in bf16"
    )

    def __init__(self, setup: Setup) -> None:
        """Load the model; its own default for keys and values is 8 bits: here 16, as the others."""
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = setup.reuse
        scheduler.max_num_batched_tokens = STEP_TOKENS
        scheduler.max_num_seqs = setup.max_seqs
        scheduler.num_kv_blocks = -(-setup.capacity // BLOCK)
        options = {"INFERENCE_NUM_THREADS": setup.threads, "KV_CACHE_PRECISION": "bf16"}
        self._scores = setup.scores
        self._requests = 0
        self._pipeline = genai.ContinuousBatchingPipeline(setup.model, scheduler, "CPU", options)

    def answer(self, prompts: Sequence[list[int]], max_tokens: int) -> list[Answer]:
        """All added, then stepped until none is left."""
        config = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        config.logprobs = int(self._scores)
        start = time.perf_counter()
        handles = []
        for prompt in prompts:
            ids = openvino.Tensor(np.array([prompt], np.int64))
            handles.append(self._pipeline.add_request(self._requests, ids, config))
            self._requests += 1
        answers = [Answer([], [], 0.0, 0.0) for _ in prompts]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter() - start
            answers = [_read(h, a, now) for h, a in zip(handles, answers, strict=True)]
        if not self._scores:
            answers = [Answer(a.ids, [], a.first, a.last) for a in answers]
        return answers

    def close(self) -> None:
        """Give the memory back."""
        del self._pipeline


def _read(handle: genai.GenerationHandle, answer: Answer, now: float) -> Answer:
    """The answer with what is new of it."""
    while handle.can_read():
        (new,) = handle.read().values()
        answer = Answer(
            ids=answer.ids + list(new.generated_ids),
            scores=answer.scores + list(new.generated_log_probs),
            first=answer.first or now,
            last=now,
        )
    return answer
