"""Asked: one request as files and logs hold it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvreuse.errors import RequestError

JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """A chat (``messages``), or a prompt as text, or as the token ids it was served with."""

    name: str
    """Where it is from: a file, or a line of one."""
    messages: tuple[Mapping[str, Any], ...] | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further variables of the chat template."""
    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    salt: str | None = None
    answers: tuple[str, ...] = ()
    """What was answered, where a log of the server says it."""


def read_file(path: Path) -> Asked:
    """A text, a list of messages, or a request with messages or a prompt.

    RequestError for a file that cannot be read as what it looks like; OSError.
    """
    text = _text(path.read_bytes(), str(path))
    looks_like_json = path.suffix.lower() in JSON_SUFFIXES
    if looks_like_json or text.lstrip()[:1] in ("{", "["):
        try:
            return asked(json.loads(text), path.name)
        except (ValueError, RecursionError) as error:
            if looks_like_json:
                raise RequestError(f"{path}: not JSON: {error}") from None
        except RequestError:
            if looks_like_json:
                raise
    if not text:
        raise RequestError(f"{path}: the file is empty")
    return Asked(path.name, prompt=text)


def read_log(path: Path) -> list[Asked]:
    """The requests of a log, one a line; blank lines count for nothing.

    RequestError, with its number, for the first line that is none; OSError.
    """
    with path.open("rb") as file:
        return [
            _line(raw, f"{path.name}, line {number}")
            for number, raw in enumerate(file, start=1)
            if raw.strip()
        ]


def _line(raw: bytes, name: str) -> Asked:
    text = _text(raw, name)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name}: not JSON: {error}") from None
    return asked(data, name)


def asked(data: Any, name: str) -> Asked:
    """A list of messages; a request; or one wrapped as ``{"body": ...}``, as batch files have it.

    RequestError, naming ``name``, for anything else.
    """
    if isinstance(data, Mapping):
        for wrapper in ("body", "request"):
            if isinstance(data.get(wrapper), Mapping):
                data = data[wrapper]
    if isinstance(data, list):
        data = {"messages": data}
    if not isinstance(data, Mapping):
        raise RequestError(f"{name}: neither messages nor a request, but {type(data).__name__}")
    if data.get("messages") is not None:
        return _chat(data, name)
    return _prompt(data, name)


def _chat(data: Mapping[str, Any], name: str) -> Asked:
    messages, tools = data["messages"], data.get("tools")
    if not isinstance(messages, list) or not messages:
        raise RequestError(f"{name}: 'messages' must be a list of at least one message")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"{name}: message {number} must be an object with a 'role'")
    if tools is not None and not _is_list_of(tools, Mapping):
        raise RequestError(f"{name}: 'tools' must be a list of objects")
    if data.get("tool_choice") == "none":
        tools = None
    options = data.get("chat_template_kwargs") or {}
    if not isinstance(options, Mapping):
        raise RequestError(f"{name}: 'chat_template_kwargs' must be an object")
    for taken in ("messages", "tools"):
        if taken in options:
            raise RequestError(f"{name}: 'chat_template_kwargs' must not have {taken!r}")
    if data.get("add_generation_prompt") is not None:
        options = {**options, "add_generation_prompt": bool(data["add_generation_prompt"])}
    return Asked(
        name,
        messages=tuple(_for_template(message) for message in messages),
        tools=tuple(tools) if tools else None,
        options=options,
        salt=_salt(data, name),
    )


def _prompt(data: Mapping[str, Any], name: str) -> Asked:
    prompt = data.get("prompt", data.get("input"))
    ids = data.get("prompt_token_ids")
    if ids is None and isinstance(prompt, list):
        prompt, ids = None, prompt
    if ids is not None and not (_is_list_of(ids, int) and ids and min(ids) >= 0):
        raise RequestError(f"{name}: a prompt must be one text, or a list of token ids")
    if ids is None and not (isinstance(prompt, str) and prompt):
        hint = ": the server writes them with --log-prompts" if "http_id" in data else ""
        raise RequestError(f"{name}: neither messages nor a prompt{hint}")
    answers: Any = data.get("answers")
    return Asked(
        name,
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_ids=None if ids is None else tuple(ids),
        salt=_salt(data, name),
        answers=tuple(answers) if _is_list_of(answers, str) else (),
    )


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as the server gives it to a template: one text, arguments as objects."""
    plain = dict(message)
    content = message.get("content")
    if isinstance(content, list):
        pieces = [piece.get("text") for piece in content if isinstance(piece, Mapping)]
        plain["content"] = "\n".join(piece for piece in pieces if isinstance(piece, str))
    elif content is None:
        plain["content"] = ""
    if isinstance(message.get("tool_calls"), list):
        plain["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return plain


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    named = {"name": function.get("name"), "arguments": arguments}
    plain = {"type": "function", "function": named}
    return plain | ({"id": call["id"]} if call.get("id") else {})


def _salt(data: Mapping[str, Any], name: str) -> str | None:
    salt = data.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise RequestError(f"{name}: 'cache_salt' must be a text")
    return salt


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, kind) and not isinstance(one, bool) for one in value
    )


def _text(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"{name}: not UTF-8 at byte {error.start}") from None
