"""What files and logs may hold, and what is said of those that hold something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvreuse.errors import RequestError
from kvreuse.study.why.asked import Asked, asked, read_file, read_log

from .chats import QUESTION, TOOLS, chat

MESSAGES = ({"role": "user", "content": QUESTION},)


@pytest.mark.parametrize(
    "data",
    [
        list(MESSAGES),
        {"messages": list(MESSAGES)},
        {"custom_id": "1", "url": "/v1/chat/completions", "body": {"messages": list(MESSAGES)}},
        {"messages": list(MESSAGES), "tools": TOOLS, "tool_choice": "none"},
        [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
    ],
)
def test_forms_of_a_chat(data: Any) -> None:
    assert asked(data, "x") == Asked("x", messages=MESSAGES)


def test_what_a_template_gets() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    data = chat("Be brief.", QUESTION, tools=TOOLS, cache_salt="s")
    data["messages"].append({"role": "assistant", "content": None, "tool_calls": [call]})
    data |= {"chat_template_kwargs": {"thinking": False}, "add_generation_prompt": False}
    found = asked(data, "x")
    assert found.messages is not None
    assert found.messages[-1]["content"] == ""
    assert found.messages[-1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert found.tools == tuple(TOOLS)
    assert found.options == {"thinking": False, "add_generation_prompt": False}
    assert found.salt == "s"


def test_forms_of_a_prompt() -> None:
    assert asked({"prompt": "Once"}, "x") == Asked("x", prompt="Once")
    assert asked({"prompt": [1, 2]}, "x") == Asked("x", prompt_ids=(1, 2))
    logged = {"http_id": "a", "prompt": "Once", "prompt_token_ids": [1, 2], "answers": ["upon"]}
    assert asked(logged, "x") == Asked("x", prompt="Once", prompt_ids=(1, 2), answers=("upon",))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "neither messages nor a request, but int"),
        ([], "'messages' must be a list of at least one message"),
        ({"messages": "hi"}, "'messages' must be a list"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], "message 2 must be an object with"),
        ({"messages": list(MESSAGES), "tools": [1]}, "'tools' must be a list of objects"),
        ({"messages": list(MESSAGES), "cache_salt": 1}, "'cache_salt' must be a text"),
        ({"messages": list(MESSAGES), "chat_template_kwargs": 1}, "'chat_template_kwargs' must be"),
        (
            {"messages": list(MESSAGES), "chat_template_kwargs": {"tools": []}},
            "'chat_template_kwargs' must not have 'tools'",
        ),
        ({"body": {"model": "x"}}, "neither messages nor a prompt$"),
        ({"http_id": "a", "prompt_tokens": 5}, "the server writes them with --log-prompts"),
        ({"prompt": ["a", "b"]}, "one text, or a list of token ids"),
        ({"prompt": [1, -1]}, "one text, or a list of token ids"),
        ({"prompt": ""}, "neither messages nor a prompt"),
    ],
)
def test_what_is_no_request(data: Any, message: str) -> None:
    with pytest.raises(RequestError, match=f"^log, line 7: .*{message}"):
        asked(data, "log, line 7")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for text in ("Once upon a time", '["not a chat"]', "{ no JSON"):
        path.write_text(text)
        assert read_file(path) == Asked("a.txt", prompt=text)
    path.write_text(json.dumps(list(MESSAGES)))
    assert read_file(path) == Asked("a.txt", messages=MESSAGES)
    bad = tmp_path / "a.json"
    bad.write_text("{ no JSON")
    with pytest.raises(RequestError, match=r"a\.json: not JSON: "):
        read_file(bad)
    path.write_bytes(b"caf\xe9")
    with pytest.raises(RequestError, match=r"a\.txt: not UTF-8 at byte 3"):
        read_file(path)
    path.write_text("")
    with pytest.raises(RequestError, match=r"a\.txt: the file is empty"):
        read_file(path)


def test_a_log_names_the_line_that_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    good = json.dumps(list(MESSAGES))
    path.write_text(f"{good}\n\n{good}\n")
    assert [one.name for one in read_log(path)] == ["log.jsonl, line 1", "log.jsonl, line 3"]
    for bad in ("{", "5", "null", '"x"', "[" * 100_000):
        path.write_text(f"{good}\n\n{bad}\n{good}\n")
        with pytest.raises(RequestError, match=r"^log\.jsonl, line 3: ") as caught:
            read_log(path)
        assert len(str(caught.value)) < 200
