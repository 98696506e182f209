"""llama.cpp, through its C interface as llama-cpp-python shows it.

What its programs do with a prefix is done here: of one sequence the rows it shares with the last
one stay (as a slot of its server does); of many at once the rows that all share are computed once
and given to all with ``llama_memory_seq_cp``, in one unified buffer (as its batched benchmark
does). Sequences that share nothing get a stream each, which is faster.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from peers.adapter import STEP_TOKENS, Adapter, Answer, Setup

PAD = 256
"""A sequence's buffer has a multiple of these."""

Ints = npt.NDArray[np.int32]


class Engine(Adapter):
    """Prompts are computed in full batches first, then all sequences decode in step."""

    version = llama_cpp.__version__
    settings = (
        "llama_decode through llama-cpp-python, compiled for this CPU; prefixes by "
        "llama_memory_seq_rm and llama_memory_seq_cp; keys and values in fp16"
    )

    def __init__(self, setup: Setup) -> None:
        """Load the model and a context for one sequence."""
        self._setup = setup
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(setup.model.encode(), params)
        if not self._model:
            raise RuntimeError(f"{setup.model} cannot be loaded")
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self._context: Any = None
        self._memory: Any = None
        self.prepare(1, setup.max_len, 0)

    def prepare(self, sequences: int, tokens: int, shared: int) -> None:
        """A context that just holds these."""
        self._free()
        unified = shared > 0 or sequences == 1
        own = tokens - shared
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = _padded(shared + sequences * own if unified else sequences * _padded(tokens))
        params.n_batch = params.n_ubatch = STEP_TOKENS
        params.n_seq_max = sequences
        params.kv_unified = unified
        params.n_threads = params.n_threads_batch = self._setup.threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("llama_init_from_model failed")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._held: list[int] = []

    def answer(self, prompts: Sequence[list[int]], max_tokens: int) -> list[Answer]:
        """Reuse, compute the rest of the prompts, decode."""
        start = time.perf_counter()
        kept = self._reuse(prompts)
        rows = [(i, p) for i, prompt in enumerate(prompts) for p in range(kept, len(prompt))]
        seqs, positions = np.array(rows, np.int32).T
        tokens = np.array([prompts[i][p] for i, p in rows], np.int32)
        ends = np.array([p == len(prompts[i]) - 1 for i, p in rows], np.int8)
        answers = [Answer([], [], 0.0, 0.0) for _ in prompts]
        for cut in range(0, len(rows), STEP_TOKENS):
            part = slice(cut, cut + STEP_TOKENS)
            chosen = self._decode(tokens[part], positions[part], seqs[part], ends[part])
            self._note(answers, seqs[part][ends[part] > 0], chosen, start)
        every = np.arange(len(prompts), dtype=np.int32)
        wanted = np.ones(len(prompts), np.int8)
        lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        for step in range(max_tokens - 1):
            last = np.array([answer.ids[-1] for answer in answers], np.int32)
            chosen = self._decode(last, lengths + np.int32(step), every, wanted)
            self._note(answers, every, chosen, start)
        self._held = [*prompts[0], *answers[0].ids[:-1]] if len(prompts) == 1 else []
        return answers

    def close(self) -> None:
        """Give the memory back."""
        self._free()
        llama_cpp.llama_model_free(self._model)

    def _free(self) -> None:
        if self._context:
            llama_cpp.llama_free(self._context)
            self._context = None

    def _reuse(self, prompts: Sequence[list[int]]) -> int:
        """Make the memory hold the first tokens of each prompt, as many as it can; how many."""
        alone = len(prompts) == 1
        if not self._setup.reuse or (not alone and len(_common(prompts)) == 0):
            llama_cpp.llama_memory_clear(self._memory, False)
            return 0
        most = min(len(prompt) for prompt in prompts) - 1  # the last token's logits are needed
        if alone:
            kept = min(most, len(_common([*prompts, self._held])))
            llama_cpp.llama_memory_seq_rm(self._memory, 0, kept, -1)
            return kept
        llama_cpp.llama_memory_clear(self._memory, False)
        shared = _common(prompts)[:most]
        for cut in range(0, len(shared), STEP_TOKENS):
            tokens = np.array(shared[cut : cut + STEP_TOKENS], np.int32)
            positions = np.arange(cut, cut + len(tokens), dtype=np.int32)
            none = np.zeros(len(tokens), np.int8)
            self._decode(tokens, positions, np.zeros_like(tokens), none)
        for index in range(1, len(prompts)):
            llama_cpp.llama_memory_seq_cp(self._memory, 0, index, -1, -1)
        return len(shared)

    def _decode(
        self, tokens: Ints, positions: Ints, seqs: Ints, wanted: npt.NDArray[np.int8]
    ) -> list[tuple[int, float]]:
        """Compute these rows; the best token and its logit of each row that is wanted."""
        tokens, positions, seqs = (np.ascontiguousarray(a) for a in (tokens, positions, seqs))
        wanted, counts = np.ascontiguousarray(wanted), np.ones_like(tokens)
        pointers = np.uint64(seqs.ctypes.data) + 4 * np.arange(len(seqs), dtype=np.uint64)
        kinds = dict(llama_cpp.llama_batch._fields_)
        batch = llama_cpp.llama_batch(n_tokens=len(tokens))
        fields: dict[str, npt.NDArray[Any]] = {
            "token": tokens,
            "pos": positions,
            "n_seq_id": counts,
            "seq_id": pointers,
            "logits": wanted,
        }
        for name, array in fields.items():
            setattr(batch, name, ctypes.cast(array.ctypes.data, kinds[name]))
        if status := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {status} for {len(tokens)} rows")
        return [self._best(row) for row in np.flatnonzero(wanted).tolist()]

    def _best(self, row: int) -> tuple[int, float]:
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        logits = np.ctypeslib.as_array(pointer, (self._vocab_size,))
        token = int(logits.argmax())
        return token, float(logits[token])

    def _note(
        self,
        answers: list[Answer],
        seqs: Ints,
        chosen: list[tuple[int, float]],
        start: float,
    ) -> None:
        now = time.perf_counter() - start
        for seq, (token, logit) in zip(seqs.tolist(), chosen, strict=True):
            old = answers[seq]
            scores = [*old.scores, logit] if self._setup.scores else []
            answers[seq] = Answer([*old.ids, token], scores, old.first or now, now)


def _padded(tokens: int) -> int:
    return -(-tokens // PAD) * PAD


def _common(prompts: Sequence[list[int]]) -> list[int]:
    """The tokens with which all begin."""
    lowest, highest = min(prompts), max(prompts)  # what these two share, all between them share
    pairs = zip(lowest, highest, strict=False)
    return lowest[: next((i for i, (a, b) in enumerate(pairs) if a != b), len(lowest))]
