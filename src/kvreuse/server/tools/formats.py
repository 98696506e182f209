"""How families of models write tool calls; the chat template shows the family."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class ToolFormat:
    """A call is ``opening`` and JSON, which is one call or a list of them.

    ``behind`` may follow it: an end, or what parts it from the next. ``arguments`` is the key of
    the arguments beside ``name``. Where ``bare`` holds, an answer may also begin with the JSON
    itself, and go on with more of it. When it is written on purpose, ``listed`` says that it is a
    list, ``before`` and ``after`` what stands around it.
    """

    name: str
    opening: str
    behind: str = ""
    arguments: str = "arguments"
    bare: bool = False
    listed: bool = False
    before: str = ""
    after: str = ""


HERMES = ToolFormat(
    "hermes", "<tool_call>", "</tool_call>", before="<tool_call>\n", after="\n</tool_call>"
)
"""Qwen 2.5 and 3, Hermes."""
SMOLLM = ToolFormat(
    "smollm",
    "<tool_call>",
    "</tool_call>",
    listed=True,
    before="<tool_call>",
    after="</tool_call>",
)
"""SmolLM2."""
LLAMA = ToolFormat("llama", "<|python_tag|>", ";", arguments="parameters", bare=True)
"""Llama 3.1 and later."""
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", listed=True, before="[TOOL_CALLS]")
"""Mistral, up to the third version of its tokenizer."""


def tool_format(template: str) -> ToolFormat | None:
    """The format that the source of a chat template speaks of; None for none that is known."""
    if "[TOOL_CALLS]" in template:
        return None if "[ARGS]" in template else MISTRAL
    if "<tool_call>" in template:
        return None if "<function=" in template else HERMES
    headers = "<|start_header_id|>" in template and '"parameters"' in template
    if "<|python_tag|>" in template or headers:
        return LLAMA
    return SMOLLM if "SmolLM" in template else None
