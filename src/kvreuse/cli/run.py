"""``kvreuse run``: answer one prompt, the text streaming as it is generated."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvreuse.api.sampling_params import SamplingParams
from kvreuse.cli import report, terminal
from kvreuse.cli.flags import Flag, FlagGroup, Model, with_flags
from kvreuse.cli.loading import engine_flags, loaded
from kvreuse.errors import RequestError

if TYPE_CHECKING:
    from kvreuse.api.ask import Ask
    from kvreuse.api.outputs import RequestOutput
    from kvreuse.llm import LLM

SAMPLING = FlagGroup(
    name="sampling",
    heading="Sampling",
    source=SamplingParams,
    skip=frozenset(
        {
            "n",
            "logprobs",
            "skip_special_tokens",
            "include_stop_str_in_output",
            "structured_outputs",
        }
    ),
    special={
        "temperature": Flag(default=0.0),
        "max_tokens": Flag(default=512, help="Tokens at which the answer ends."),
        "stop": Flag(
            type=list[str] | None,
            metavar="TEXT",
            help="A text that ends the answer and is cut off it; may be given again.",
        ),
        "stop_token_ids": Flag(
            type=list[int] | None,
            metavar="ID",
            help="A token that ends the answer; may be given again.",
        ),
    },
)
ENGINE = engine_flags("max_num_seqs", "seed")


@with_flags(SAMPLING, ENGINE)
def run(
    model: Model,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The text; - reads it from standard input.")
    ],
    *,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A system message before the prompt.")
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", metavar="", help="Continue the text as it is, without a chat template."
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", metavar="", help="Print one JSON object at the end, not the text."),
    ] = False,
    sampling: dict[str, Any],
    engine: dict[str, Any],
) -> None:
    """Answer a prompt. The text streams to standard output; one line of figures follows it.

    \b
      kvreuse run smollm2-135m "Why is the sky blue?"
      kvreuse run smollm2-135m - --system "Summarise." < notes.txt
      kvreuse run model.gguf "Once upon a time" --raw --temperature 0.8 --seed 7
      kvreuse run smollm2-135m "Name three colours." --json | jq .text
    """
    if raw and system is not None:
        raise RequestError("--system needs the chat template that --raw turns off: give only one")
    for stop in sampling["stop"] or ():
        _checked(stop, "--stop")
    params = SamplingParams(**sampling)
    words = _read_prompt(prompt, raw=raw)
    with loaded(model, {**engine, "max_num_seqs": 1}) as (llm, load_seconds):
        output = _answer(
            llm, _compose(llm, words, raw=raw, system=system), params, show=not as_json
        )
        if as_json:
            terminal.write_json(report.as_json(output, llm.pool, model, load_seconds))
        else:
            terminal.stderr().print(
                report.summary(output, llm.pool, params.max_tokens), style="dim", soft_wrap=True
            )


def _read_prompt(prompt: str, *, raw: bool) -> str:
    """The prompt, or standard input for ``-``. RequestError if it is empty or not UTF-8."""
    if prompt != "-":
        words = _checked(prompt, "the prompt")
    else:
        try:
            words = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise RequestError(
                f"standard input is not UTF-8 at byte {error.start}: convert it first"
            ) from None
        if not raw:
            words = words.removesuffix("\n")  # a chat's message needs no line break at its end
    if not words:
        raise RequestError("the prompt is empty: give some text")
    return words


def _checked(words: str, what: str) -> str:
    """The words of an argument. RequestError if their bytes were not UTF-8 (PEP 383)."""
    try:
        words.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{what} is not UTF-8 at character {error.start}") from None
    return words


def _compose(llm: LLM, words: str, *, raw: bool, system: str | None) -> str | Ask:
    """The words in the form the model was made for: a chat, where it has a template."""
    if raw or (llm.chat_template is None and system is None):
        return words
    messages = [{"role": "user", "content": words}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": _checked(system, "--system")})
    return llm.chat_prompt(messages)


def _answer(llm: LLM, prompt: str | Ask, params: SamplingParams, *, show: bool) -> RequestOutput:
    """Generate to the end; with ``show``, write the text as it comes."""
    clean = terminal.for_terminal if sys.stdout.isatty() else str
    ends_line = True
    for delta in llm.stream(prompt, params):
        if show and delta.text:
            terminal.write_out(clean(delta.text))
            ends_line = delta.text.endswith("\n")
        if delta.output is not None:
            if show and not ends_line:
                terminal.write_out("\n")
            return delta.output
    raise AssertionError("a stream ends with its result")
