"""Anything may lie in a config.json: a plan or one clear line comes out, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.errors import KVReuseError, ModelFileError
from kvreuse.ops.native import NativeBackend
from kvreuse.plan.config_json import READERS, read_config, shape_of, text_fields
from kvreuse.plan.facts import facts
from kvreuse.plan.memory import KVPlan
from kvreuse.plan.report import Wish, report
from kvreuse.plan.source import find_model

BACKEND = NativeBackend(threads=1)

absurd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.integers(-(10**40), 10**40),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-2, 9), max_size=4),
    st.lists(st.text(max_size=20), max_size=4),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)
NAMES = sorted({key for fact in facts().values() for key in fact.config} - {"model_type"})
FIELDS = [*NAMES, "layer_types", "use_sliding_window", "num_kv_heads", "n_head_kv", "attn_config"]


@settings(max_examples=500, deadline=None)
@given(
    fact=st.sampled_from(list(facts().values())),
    model_type=st.one_of(st.none(), st.sampled_from(sorted(READERS)), absurd),
    dropped=st.lists(st.sampled_from(FIELDS), max_size=2),
    changed=st.dictionaries(st.sampled_from(FIELDS), absurd, max_size=3),
    nested=st.booleans(),
)
def test_a_plan_or_one_line(
    fact: Any, model_type: Any, dropped: list[str], changed: dict[str, Any], nested: bool
) -> None:
    config = {**fact.config, **changed}
    config = {key: value for key, value in config.items() if key not in dropped}
    if model_type is not None:
        config["model_type"] = model_type
    if nested:
        config = {"model_type": "outer", "text_config": config}
    try:
        found = shape_of(text_fields(config, "config.json"))
    except ModelFileError as error:
        assert str(error).startswith("config.json")
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
    else:
        assert KVPlan(found).token_bytes >= 0
        assert 0 < len(found.layers) <= 10_000


@settings(max_examples=100, deadline=None)
@given(value=st.recursive(absurd, lambda inner: st.dictionaries(st.text(), inner, max_size=3)))
def test_any_json(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(value))
    with pytest.raises(KVReuseError, match=r"any\.json"):
        report(find_model(str(path), BACKEND), Wish(1 << 30, BACKEND))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON: .* at line 1, column 2"),
        (b"[]", "must hold a JSON object"),
        (b"\xff\xfe{}", "is not UTF-8 at byte 0"),
        (b'{"a": ' + b"9" * 5000 + b"}", "absurdly long"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 50_000, "nested too deeply"),
    ],
    ids=range(7),
)
def test_what_is_no_config(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message):
        read_config(path)


def test_a_file_too_large(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as stream:
        stream.truncate(1 << 25)
    with pytest.raises(ModelFileError, match="too large for a config"):
        read_config(path)


def test_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(dict(facts()["gpt2"].config)).encode())
    assert find_model(str(path), BACKEND).shape == find_model("gpt2", BACKEND).shape
