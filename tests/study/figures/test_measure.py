"""What the figures measure, in tiny sizes on the real model."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from kvreuse.errors import ConfigError
from kvreuse.kv.layout import KVLayout
from kvreuse.ops.native import NativeBackend
from kvreuse.plan.memory import KVPlan
from kvreuse.plan.source import find_model
from kvreuse.study.figures import growth, memory, pool, prefix
from kvreuse.study.figures.catalogue import KINDS
from kvreuse.study.figures.record import Options, Record
from kvreuse.study.figures.running import layout_of

BACKEND = NativeBackend(threads=1)


def options(model: Path, tokens: int, repeats: int = 1) -> Options:
    return Options(str(model), tokens=tokens, repeats=repeats)


@pytest.fixture(scope="module")
def layout(model_path: Path) -> KVLayout:
    return layout_of(str(model_path))[0]


def test_growth(model_path: Path, layout: KVLayout) -> None:
    record = growth.measure(options(model_path, 40, repeats=2))
    data, summary = record.data, record.summary
    assert data["with_rows"] == [1] * 40
    assert data["without_rows"] == list(range(1, 41))
    assert summary["with_rows"] == 40
    assert summary["without_rows"] == 40 * 41 // 2
    assert summary["same_tokens"]
    assert summary["seconds_factor"] > 1
    pages = [nbytes / layout.page_bytes for nbytes in data["held_bytes"]]
    assert pages == [1] * 32 + [2] * 8
    long = data["long"]
    assert long["tokens"] == [40, 80, 160, 320, 640]
    held = [layout.pages_for(length) * layout.page_bytes for length in long["tokens"]]
    assert long["held_bytes"] == held
    assert record.settings["repeats"] == 2


def test_memory(model_path: Path, layout: KVLayout) -> None:
    record = memory.measure(options(model_path, 1000))
    data = record.data
    assert data["tokens"] == [64, 128, 256, 512, 1000]
    geometry = find_model(str(model_path), BACKEND).shape
    for codec, batch in itertools.product(("bf16", "int4"), (1, 256)):
        plan = KVPlan(geometry, codec)
        wanted = [plan.reserved(tokens, batch) for tokens in data["tokens"]]
        assert data["planned_bytes"][codec][str(batch)] == wanted
    assert data["resident"]["tokens"] == [512, 1000]
    for tokens, resident in zip(*data["resident"].values(), strict=True):
        planned = layout.pages_for(tokens) * layout.page_bytes
        assert planned <= resident + (64 << 10)
        assert resident <= planned + (4 << 20)  # whole huge pages
    assert record.summary["bf16"]["bytes_per_token"] == layout.bytes_per_token


def test_prefix(model_path: Path, layout: KVLayout) -> None:
    record = prefix.measure(options(model_path, 64))
    on, off = record.data["with"], record.data["without"]
    shares = record.data["shares"]
    # Without sharing all are computed; what is shared never is, but for the last token of a prompt.
    assert off["prefilled_tokens"] == [8 * 64] * len(shares)
    own = [64 - round(share * 64) for share in shares]
    assert on["prefilled_tokens"] == [8 * max(count, 1) for count in own]
    assert len(set(off["held_bytes"])) == 1
    assert on["held_bytes"][0] == off["held_bytes"][0]
    assert on["held_bytes"][-1] < off["held_bytes"][-1]
    assert off["held_bytes"][0] == 8 * layout.pages_for(64 + 8 - 1) * layout.page_bytes
    assert record.summary["prefilled_factor"] == 4


def test_pool(model_path: Path, layout: KVLayout) -> None:
    record = pool.measure(options(model_path, 128))
    data, summary = record.data, record.summary
    assert data["tokens"] == list(range(16, 129, 16))
    assert {name: len(series) for name, series in data["seconds"].items()} == {
        "concatenation": 8,
        "pool": 8,
    }
    live = 128 * layout.bytes_per_token
    assert data["peak"]["pool"] >= live
    assert data["peak"]["concatenation"] > live  # a layer's array twice, while it is copied
    loads = data["load"]
    assert loads["concatenation"]["live_bytes"] == loads["pool"]["live_bytes"]
    for live_bytes, taken in zip(
        loads["pool"]["live_bytes"], loads["pool"]["taken_bytes"], strict=True
    ):
        assert live_bytes <= taken < live_bytes + 8 * layout.page_bytes
    assert loads["concatenation"]["taken_bytes"] == loads["concatenation"]["live_bytes"]
    assert 0 < summary["pool"]["empty_share"] < summary["reserved"]["empty_share"] < 1


def test_runs_that_would_end_too_late_do_not_begin(model_path: Path) -> None:
    record = growth.measure(Options(str(model_path), tokens=4, repeats=50, budget=1e-9))
    assert record.settings["repeats"] == 1


def test_progress_ends_at_its_end(model_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    asked = Options(str(model_path), tokens=8, repeats=2, progress=lambda *tick: seen.append(tick))
    growth.measure(asked)
    assert seen[-1] == (72, 72)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize("name", ["growth", "prefix"])
def test_longer_than_the_model_can(name: str, model_path: Path) -> None:
    with pytest.raises(ConfigError, match="the model was made for 8,192: lower it"):
        KINDS[name].measure(options(model_path, 8192))


@pytest.mark.parametrize("tokens", [100, 8193])
def test_lengths_that_memory_cannot_plan(tokens: int, model_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tokens must be from 128 to 8,192"):
        memory.measure(options(model_path, tokens))


@pytest.mark.parametrize("name", ["growth", "memory", "prefix", "pool"])
def test_captions_say_what_was_measured(name: str, measured: dict[str, Record]) -> None:
    captions = KINDS[name].captions(measured[name])
    assert measured[name].model in captions.en.text
    assert measured[name].model in captions.zh.text
    for caption in (captions.en, captions.zh):
        assert re.search(r"\d", caption.title)
    # Both languages tell the same numbers.
    numbers = [set(re.findall(r"\d[\d,.]*\d|\d", c.text)) for c in (captions.en, captions.zh)]
    assert numbers[0] - numbers[1] <= {"2", "1", "0"}
