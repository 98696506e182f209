"""Texts in windows of tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvreuse.errors import ConfigError
from kvreuse.model.open import open_checkpoint
from kvreuse.study.quality.texts import STANDARD_NAME, Text, read_text, standard_text, windows_of
from kvreuse.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> Tokenizer:
    with open_checkpoint(model_path) as checkpoint:
        return Tokenizer(checkpoint.vocabulary)


def test_windows_follow_one_another(tokenizer: Tokenizer) -> None:
    text = standard_text()
    assert text.name == STANDARD_NAME
    windows = windows_of(text, tokenizer, 100, 3)
    assert [len(window) for window in windows] == [100, 100, 100]
    ids = tokenizer.encode(text.content[:4000], add_special_tokens=False)
    assert np.concatenate(windows).tolist() == ids[:300]


def test_each_window_begins_with_bos_where_the_model_wants_one(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "add_bos", True)
    monkeypatch.setattr(tokenizer, "bos_token_id", 1)
    windows = windows_of(standard_text(), tokenizer, 50, 2)
    assert [window[0] for window in windows] == [1, 1]
    assert [len(window) for window in windows] == [50, 50]


def test_a_short_text_is_one_short_window(tokenizer: Tokenizer) -> None:
    [window] = windows_of(Text("t", "Water boils at a hundred degrees."), tokenizer, 2048, 16)
    assert 4 < len(window) < 20


@pytest.mark.parametrize("content", ["", "a"])
def test_nothing_to_predict_is_an_error(tokenizer: Tokenizer, content: str) -> None:
    with pytest.raises(ConfigError, match=r"t\.txt has . tokens?"):
        windows_of(Text("t.txt", content), tokenizer, 2048, 16)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.txt: No such file"):
        read_text(tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes("déjà vu".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin\.txt is not UTF-8 at byte 1"):
        read_text(tmp_path / "latin.txt")
