"""Chat templates: from messages to the text that the model was trained on.

Templates are Jinja2, rendered as the ``transformers`` package does, in a sandbox with bounds.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2

from kvreuse.errors import RequestError, shown
from kvreuse.text.chat_defaults import default_template
from kvreuse.text.sandbox import BoundedEnvironment, bounded
from kvreuse.text.tokenizer import Tokenizer

Message = Mapping[str, Any]


class RefusedError(jinja2.TemplateError):
    """The template called ``raise_exception``: it does not take these messages."""


class ChatTemplate:
    """A template and the special tokens that it may name.

    It is compiled when it is first rendered, so that a model with a broken template still serves
    prompts. Encode the rendered text without ``add_special_tokens``: the template writes its own.
    """

    def __init__(self, source: str, **special_tokens: str) -> None:
        """``special_tokens`` are texts of tokens: ``bos_token="<s>"``, ``eos_token="</s>"``."""
        self.source = source
        self._tokens = {"bos_token": "", "eos_token": "", **special_tokens}
        self._template: jinja2.Template | None = None

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt for a conversation; each message has a ``role`` and mostly a ``content``.

        With ``add_generation_prompt`` it ends with the start of the assistant's turn. ``kwargs``
        are further variables of the template. Raises ``RequestError`` for something else than
        messages, and where the template refuses them, is broken, or takes too long or too much
        memory.
        """
        _check_messages(messages)
        variables = {
            **self._tokens,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **kwargs,
        }
        try:
            return bounded(lambda: self._compiled().render(variables))
        except RefusedError as error:
            raise RequestError(f"the chat template refuses the messages: {_line(error)}") from None
        except jinja2.TemplateSyntaxError as error:
            where = f"line {error.lineno}"
            raise RequestError(f"the chat template is broken: {where}: {_line(error)}") from None
        except Exception as error:  # a template is a program: it may raise anything
            reason = f"{type(error).__name__}: {_line(error)}"
            raise RequestError(f"the chat template fails on the messages: {reason}") from None

    def _compiled(self) -> jinja2.Template:
        if self._template is None:
            environment = BoundedEnvironment()
            environment.filters["tojson"] = _tojson
            environment.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
            self._template = environment.load(self.source)
        return self._template


def chat_template(templates: Mapping[str, str], tokenizer: Tokenizer) -> ChatTemplate | None:
    """The template called ``default`` of a model's ``templates``, with the tokenizer's tokens.

    Without one, the standard template for the vocabulary's turns (``chat_defaults``); None where
    there is none for them either.
    """
    source = templates.get("default") or default_template(tokenizer)
    if source is None:
        return None
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_ids
    return ChatTemplate(
        source,
        bos_token="" if bos is None else tokenizer.token_text(bos),
        eos_token=tokenizer.token_text(eos[0]) if eos else "",
    )


def _check_messages(messages: Sequence[Message]) -> None:
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise RequestError("messages must be a list of at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"message {index} must be a mapping with a 'role', such as 'user'")


def _line(error: Exception) -> str:
    """The message of an exception, on one line of bounded length."""
    return shown(" ".join(str(error).split()))[1:-1]


def _refuse(message: str) -> NoReturn:
    raise RefusedError(message)


def _strftime_now(layout: str) -> str:
    return datetime.datetime.now().strftime(layout)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as in training; Jinja2's own filter would escape HTML and sort keys."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
