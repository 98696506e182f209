"""An LLM whose keys and values are stored in fewer bits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kvreuse import LLM, SamplingParams
from kvreuse.errors import ConfigError
from kvreuse.kv.codec.codec import UNIFORM

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def served(path: Path, dtype: str) -> LLM:
    return LLM(path, kv_cache_dtype=dtype, kv_cache_memory="8MiB", max_num_seqs=4)


@pytest.mark.parametrize("dtype", UNIFORM)
def test_hits_are_exact_and_a_pool_holds_more(tiny_model: Path, dtype: str) -> None:
    with served(tiny_model, dtype) as llm, served(tiny_model, "bf16") as plain:
        assert llm.pool.layout.codec.name == dtype
        prompt = "one two three four five six seven eight nine ten " * 4
        cold, warm = (llm.generate(prompt, PARAMS)[0] for _ in range(2))
        assert warm.outputs[0].token_ids == cold.outputs[0].token_ids
        assert warm.num_cached_tokens == cold.metrics.num_prompt_tokens - 1
        ratio = {"bf16": 1.0, "int8": 0.53125, "int4": 0.28125, "k8v4": 0.40625}[dtype]
        assert llm.pool.layout.page_bytes == ratio * plain.pool.layout.page_bytes
        assert llm.pool.num_pages >= int(plain.pool.num_pages / ratio)
        assert len(llm.pool.page(0)) == llm.pool.layout.page_bytes


def test_every_codec_has_pages_of_its_own(tiny_model: Path) -> None:
    spaces = set()
    for dtype in UNIFORM:
        with served(tiny_model, dtype) as llm:
            spaces.add(llm.pool.layout.fingerprint())
    assert len(spaces) == len(UNIFORM)


def test_auto_needs_a_calibration(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"auto needs a calibration .*run kvreuse calibrate"):
        served(tiny_model, "auto")


def test_samples_are_forked(tiny_model: Path) -> None:
    several = dataclasses.replace(PARAMS, n=3, temperature=1.0, seed=5)
    with served(tiny_model, "int4") as llm:
        [together] = llm.generate("Once upon a time", several)
        for i, answer in enumerate(together.outputs):
            alone = dataclasses.replace(several, n=1, seed=5 + i)
            [expected] = llm.generate("Once upon a time", alone)
            assert answer.token_ids == expected.outputs[0].token_ids
