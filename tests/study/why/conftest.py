"""What makes prompts: the real model's tokenizer, with its own template and with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvreuse.study.why.rendered import Texts
from kvreuse.text.chat import ChatTemplate
from kvreuse.text.chat_defaults import CHATML

TOOLS_FIRST = (
    "{% if tools %}{{ 'Tools:\n' }}{% for tool in tools %}{{ (tool | tojson) + '\n' }}{% endfor %}"
    "{% endif %}" + CHATML
)


@pytest.fixture(scope="session")
def texts(model_path: Path) -> Texts:
    return Texts.of_model(model_path)


@pytest.fixture(scope="session")
def with_tools(texts: Texts) -> Texts:
    """A template that prints tools, before the messages."""
    return Texts(texts.tokenizer, ChatTemplate(TOOLS_FIRST))


@pytest.fixture(scope="session")
def forgetful(texts: Texts) -> Texts:
    """A template that drops the thoughts of all answers but the last, as many do."""
    source = CHATML.replace(
        "message['content']",
        "(message['content'] if loop.last else message['content'].split('</think>')[-1])",
    )
    return Texts(texts.tokenizer, ChatTemplate(source))
