"""Chat templates: what the real model gets, what templates may use, and what errors look like."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from kvreuse.errors import ModelFileError, RequestError
from kvreuse.model.open import open_checkpoint
from kvreuse.text.chat import ChatTemplate, chat_template
from kvreuse.text.tokenizer import Tokenizer

from ..model.gguf.gguf_files import vocabulary, write_tiny_llama

SYSTEM = {"role": "system", "content": "Be <brief>."}
USER = {"role": "user", "content": "Hi & bye?"}
ASSISTANT = {"role": "assistant", "content": "Yes."}


def template_of(path: Path) -> ChatTemplate | None:
    with open_checkpoint(path) as checkpoint:
        return chat_template(checkpoint.chat_templates, Tokenizer(checkpoint.vocabulary))


def render(source: str, messages: Any = (USER,), **kwargs: Any) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages, **kwargs)


def test_the_real_model_with_a_system_message(model_path: Path) -> None:
    template = template_of(model_path)
    assert template is not None
    assert template.render([SYSTEM, USER, ASSISTANT, USER]) == (
        "<|im_start|>system\nBe <brief>.<|im_end|>\n"
        "<|im_start|>user\nHi & bye?<|im_end|>\n"
        "<|im_start|>assistant\nYes.<|im_end|>\n"
        "<|im_start|>user\nHi & bye?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_real_model_adds_a_system_message(model_path: Path) -> None:
    template = template_of(model_path)
    assert template is not None
    system, *turns = template.render([USER, ASSISTANT], add_generation_prompt=False).split(
        "<|im_end|>\n"
    )
    assert system.startswith("<|im_start|>system\nYou are ")
    assert turns == ["<|im_start|>user\nHi & bye?", "<|im_start|>assistant\nYes.", ""]


def test_special_tokens_come_from_the_file(tmp_path: Path) -> None:
    source = "{{ bos_token }}|{{ eos_token }}"
    path = write_tiny_llama(tmp_path / "x", layers=1, extra={"tokenizer.chat_template": source})
    template = template_of(path)
    assert template is not None
    assert template.render([USER]) == "<|im_start|>|<|im_end|>"


def without_template(path: Path, *turns: str) -> ChatTemplate | None:
    """What a file without a template gets, whose control tokens are ``turns``."""
    tokens, merges, kinds = vocabulary(320)
    keys = {
        "tokenizer.chat_template": None,
        "tokenizer.ggml.tokens": ["<bos>", *turns, *tokens[3 : 320 - len(turns) + 2]],
        "tokenizer.ggml.token_type": [3] * (1 + len(turns)) + kinds[3 : 320 - len(turns) + 2],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.merges": merges[:1],
    }
    return template_of(write_tiny_llama(path, layers=1, vocab=320, extra=keys))


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (
            ["<|im_start|>", "<|im_end|>"],
            "<|im_start|>system\nBe <brief>.<|im_end|>\n<|im_start|>user\nHi & bye?<|im_end|>\n"
            "<|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>user\nHi & bye?<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
            "<bos><|start_header_id|>system<|end_header_id|>\n\nBe <brief>.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi & bye?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nYes.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi & bye?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            ["<start_of_turn>", "<end_of_turn>"],
            "<bos><start_of_turn>user\nBe <brief>.\n\nHi & bye?<end_of_turn>\n"
            "<start_of_turn>model\nYes.<end_of_turn>\n"
            "<start_of_turn>user\nHi & bye?<end_of_turn>\n<start_of_turn>model\n",
        ),
    ],
    ids=["chatml", "llama3", "gemma"],
)
def test_a_file_without_a_template_gets_that_of_its_turns(
    turns: list[str], expected: str, tmp_path: Path
) -> None:
    template = without_template(tmp_path / "x", *turns)
    assert template is not None
    conversation = [SYSTEM, USER, ASSISTANT, USER]
    assert template.render(conversation) == expected
    rest = template.render(conversation, add_generation_prompt=False)
    assert expected.startswith(rest)
    assert rest.rstrip().endswith(turns[-1])


@pytest.mark.parametrize("turns", [[], ["<|im_start|>"], ["<start_of_turn>", "<|im_end|>"]])
def test_a_file_without_a_template_and_without_turns(turns: list[str], tmp_path: Path) -> None:
    assert without_template(tmp_path / "x", *turns) is None


def test_a_template_that_is_no_text(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "y", layers=1, extra={"tokenizer.chat_template": 5})
    with pytest.raises(ModelFileError, match="chat_template' must hold text"):
        template_of(path)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ bos_token }}{{ eos_token }}{{ undefined_thing }}", "<s></s>"),
        ("{{ tools is none }} {{ documents is none }} {{ extra }}", "True True 7"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi & bye?"}]'),
        ('{{ {"b": "é<", "a": 1} | tojson }}', '{"b": "é<", "a": 1}'),
        ('{{ {"b": 1} | tojson(indent=2) }}', '{\n  "b": 1\n}'),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
         "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ loop.last }}"
         "{{ loop.previtem is undefined }}{% endfor %}", "1/1 TrueTrue"),
        ("{% set ns = namespace(n=0) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% endfor %}"
         "{{ ns.n }}", "6"),
        ("{% macro f(x, y='-') %}<{{ x ~ y ~ 1 }}>{% endmacro %}{{ f('a') ~ f('b', y='+') }}",
         "<a-1><b+1>"),
        ("{{ 'a b'.split(' ')[-1].strip() + 'x' * 3 + '%s-%03d' % ('y', 7) }}", "bxxxy-007"),
        ("{{ '{}|{:>4}'.format(1, 'z') }} {{ messages[::-1] | map(attribute='role') | join }}",
         "1|   z user"),
        ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
         "Hi & bye?"),
        ("{% for r in [[1, [2]], 3] recursive %}{{ loop(r) if r is iterable else r }}{% endfor %}",
         "123"),
    ],
)  # fmt: skip
def test_what_templates_may_use(source: str, expected: str) -> None:
    assert render(source, extra=7) == expected


def test_the_time() -> None:
    before = datetime.datetime.now().strftime("%Y-%m-%d")
    assert render("{{ strftime_now('%Y-%m-%d') }}") in {
        before,
        datetime.datetime.now().strftime("%Y-%m-%d"),
    }


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no\nsystem') }}", "refuses the messages: no system"),
        ("a\n{% frob %}", "is broken: line 2: Encountered unknown tag 'frob'."),
        ("{{ 'x }}", "is broken: line 1: unexpected char"),
        ("{{ messages[0].a.b }}", "UndefinedError: 'dict object' has no attribute 'a'"),
        ("{{ 1 / 0 }}", "fails on the messages: ZeroDivisionError: division by zero"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError: access to attribute '__class__'"),
        ("{{ [1].append(1) }}", "SecurityError: access to attribute 'append'"),
        ("{% include 'x' %}", "fails on the messages: TypeError: no loader"),
        ("{{ cycler | tojson }}", "fails on the messages: TypeError: Object of type"),
    ],
)
def test_templates_that_fail(source: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(source)
    line = str(caught.value)
    assert line.startswith("the chat template ")
    assert message in line
    assert line.isprintable()


@pytest.mark.parametrize("messages", [[], "hi", None, {"role": "user"}, 5])
def test_messages_that_are_none(messages: Any) -> None:
    with pytest.raises(RequestError, match="messages must be a list of at least one message"):
        render("x", messages)


@pytest.mark.parametrize("message", ["hi", {}, {"content": "x"}, {"role": 5}])
def test_a_message_that_is_none(message: Any) -> None:
    with pytest.raises(RequestError, match="message 1 must be a mapping with a 'role'"):
        render("x", [USER, message])
