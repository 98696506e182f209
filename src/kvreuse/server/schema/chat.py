"""The body of a chat completion."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvreuse.server.schema.fields import Body, Count, Sampling, Unsupported


class TextPart(Body):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class FunctionCall(Body):
    """A function, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(Body):
    """A tool call of an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class Message(BaseModel):
    """A message of a conversation. Further fields go to the chat template as they are."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: Unsupported = None
    audio: Unsupported = None

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it: one text, arguments as the objects that they stand for."""
        message = dict(self.__pydantic_extra__ or {})
        message |= {"role": self.role, "content": self.text}
        for name in ("name", "tool_call_id"):
            if getattr(self, name) is not None:
                message[name] = getattr(self, name)
        if self.tool_calls:
            message["tool_calls"] = [_for_template(call) for call in self.tool_calls]
        return message

    @property
    def text(self) -> str:
        """The content as one text, its parts on lines of their own."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class Function(Body):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool; functions are the only ones."""

    type: Literal["function"]
    function: Function


class FunctionName(Body):
    """The name of a function."""

    name: str


class ToolChoice(Body):
    """The function that must be called."""

    type: Literal["function"]
    function: FunctionName


class Templated(Body):
    """A conversation, and further variables for the chat template."""

    messages: list[Message] = Field(min_length=1)
    tools: list[Tool] | None = Field(None, max_length=1024)
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_kwargs(self) -> Templated:
        taken = {"messages", "tools", "add_generation_prompt", "cache_salt", "self"}
        if names := sorted(taken & set(self.chat_template_kwargs or ())):
            raise ValueError(f"chat_template_kwargs must not have {names[0]!r}")
        return self

    def template_options(self) -> dict[str, Any]:
        """Keyword arguments for the template."""
        options = dict(self.chat_template_kwargs or {})
        if self.tools:
            options["tools"] = [tool.model_dump(exclude_none=True) for tool in self.tools]
        if self.add_generation_prompt is not None:
            options["add_generation_prompt"] = self.add_generation_prompt
        return options

    def conversation(self) -> list[dict[str, Any]]:
        """The messages as templates expect them."""
        return [message.for_template() for message in self.messages]


class ChatRequest(Templated, Sampling):
    """``POST /v1/chat/completions``."""

    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Unsupported = None
    function_call: Unsupported = None
    modalities: list[Literal["text"]] | None = None
    audio: Unsupported = None
    prediction: Unsupported = None
    web_search_options: Unsupported = None
    reasoning_effort: str | None = Field(None, max_length=64, description="For the template.")

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        if isinstance(self.tool_choice, ToolChoice) or self.tool_choice == "required":
            names = {tool.function.name for tool in self.tools or ()}
            chosen = getattr(self.tool_choice, "function", None)
            if not names or (chosen is not None and chosen.name not in names):
                raise ValueError("tool_choice names a tool that is not among the tools")
        return self

    @property
    def num_logprobs(self) -> int | None:
        """As SamplingParams counts them."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def template_options(self) -> dict[str, Any]:
        """Keyword arguments for the template; without tools where none may be called."""
        options = super().template_options()
        if self.tool_choice == "none":
            options.pop("tools", None)
        if self.reasoning_effort is not None:
            options.setdefault("reasoning_effort", self.reasoning_effort)
        return options


def _for_template(call: ToolCall) -> dict[str, Any]:
    """A call whose arguments are an object, where they are one."""
    arguments: Any = call.function.arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        arguments = parsed
    function = {"name": call.function.name, "arguments": arguments}
    return {"type": "function", "function": function} | ({"id": call.id} if call.id else {})
