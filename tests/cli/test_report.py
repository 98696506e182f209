"""The line of figures."""

from __future__ import annotations

import dataclasses

from kvreuse.api.outputs import CompletionOutput, FinishReason, RequestMetrics, RequestOutput
from kvreuse.cli.report import summary
from kvreuse.kv.codec.codec import make_codec
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool
from kvreuse.shape import attention

METRICS = RequestMetrics(
    arrival_time=100.0,
    first_scheduled_time=100.0,
    first_token_time=100.5,
    finished_time=102.5,
    num_prompt_tokens=1000,
    num_generated_tokens=41,
    num_pages=33,
    num_reserved_pages=40,
    kv_bytes=33 * 720 * 1024,
)


def line(
    metrics: RequestMetrics,
    reason: FinishReason,
    max_tokens: int | None = 41,
    cached: int = 0,
    codec: str = "bf16",
) -> str:
    answer = CompletionOutput(index=0, text="", token_ids=(), finish_reason=reason)
    output = RequestOutput("0", None, (), [answer], metrics, num_cached_tokens=cached)
    layers = (attention(3, 64),) * 30
    pool = PagePool(KVLayout(layers, codec=make_codec(codec, layers)), num_pages=64)
    return summary(output, pool, max_tokens)


def test_tokens_rates_first_token_and_pages() -> None:
    assert line(METRICS, "stop") == (
        "prompt 1,000 at 2,000 tok/s, 0 cached | generated 41 at 20 tok/s | first token 500 ms"
        " | KV 33 pages, 23.2 MiB of 45 MiB"
    )


def test_a_codec_is_named_with_what_it_does() -> None:
    assert "| KV 33 pages, 23.2 MiB of 12.7 MiB in int4 (not calibrated: Hadamard)" in line(
        METRICS, "stop", codec="int4"
    )


def test_cached_tokens() -> None:
    assert line(METRICS, "stop", cached=960).startswith("prompt 1,000 at 2,000 tok/s, 960 cached |")


def test_one_token_has_no_rate() -> None:
    one = dataclasses.replace(METRICS, num_generated_tokens=1, num_pages=1)
    assert "| generated 1 | first token 500 ms | KV 1 page, " in line(one, "stop")


def test_what_cut_an_answer_is_named() -> None:
    assert line(METRICS, "length").endswith(" | cut by --max-tokens")
    assert line(METRICS, "length", 512).endswith(" | the context is full")
    assert line(METRICS, "length", None).endswith(" | the context is full")
