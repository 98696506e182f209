"""Answers in a form, by the real model: any text is possible, so only the masks keep the form."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from kvreuse import LLM, SamplingParams, StructuredOutputs
from kvreuse.api.outputs import CompletionOutput
from kvreuse.engine.answer.guide.grammars import MAX_LINKS
from kvreuse.engine.answer.guide.guide import Guide, Guides
from kvreuse.errors import RequestError

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["new", "old"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": ["integer", "null"], "maximum": 9, "minimum": 0},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"const": "end"}]},
            },
            "required": ["value", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
LIST = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}
QUOTED = ['say "hi"', "two\nlines", "päivää/\\", "Ünïcödé 日本"]
DATE = r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
SUM = """
start: term (" + " term)+ " ="
term: NUMBER | "(" term " * " term ")"
NUMBER: /[1-9][0-9]?/
"""
GREEDY = SamplingParams(temperature=0, max_tokens=120)
SEEDED = [SamplingParams(temperature=1.0, seed=seed, max_tokens=150) for seed in (1, 2)]
PROMPT = "Here is an example of what I mean:\n"


@pytest.fixture(scope="module")
def llm(model_path: Path) -> Iterator[LLM]:
    """The real model."""
    with LLM(model_path, kv_cache_memory="128MiB", threads=1) as loaded:
        yield loaded


def asked(params: SamplingParams, **form: Any) -> SamplingParams:
    return dataclasses.replace(params, structured_outputs=StructuredOutputs(**form))


def answer(llm: LLM, params: SamplingParams, prompt: str = PROMPT) -> CompletionOutput:
    return llm.generate(prompt, params)[0].outputs[0]


@pytest.mark.parametrize("params", [GREEDY, *SEEDED], ids=["greedy", "seed 1", "seed 2"])
@pytest.mark.parametrize("schema", [PERSON, LIST], ids=["object", "array"])
def test_json_follows_its_schema(llm: LLM, schema: dict[str, Any], params: SamplingParams) -> None:
    said = answer(llm, asked(params, json=schema))
    assert (said.finish_reason, said.stop_reason) == ("stop", None)
    value = json.loads(said.text)
    jsonschema.validate(value, schema)
    assert said.text == json.dumps(value, ensure_ascii=False) or "\\" in said.text
    assert said == answer(llm, asked(params, json=json.dumps(schema)))


def test_a_recursive_schema(llm: LLM) -> None:
    params = asked(SamplingParams(n=4, seed=0, max_tokens=90), json=TREE)
    said = llm.generate(PROMPT, params)[0].outputs
    whole = [json.loads(one.text) for one in said if one.finish_reason == "stop"]
    assert whole
    for value in whole:
        jsonschema.validate(value, TREE)


def test_any_json_object(llm: LLM) -> None:
    said = answer(llm, asked(GREEDY, json_object=True), prompt="A person as JSON: ")
    assert said.text.startswith("{")
    if said.finish_reason == "stop":
        assert isinstance(json.loads(said.text), dict)


@pytest.mark.parametrize("params", [GREEDY, *SEEDED], ids=["greedy", "seed 1", "seed 2"])
def test_regex_choice_and_grammar(llm: LLM, params: SamplingParams) -> None:
    assert re.fullmatch(DATE, answer(llm, asked(params, regex=DATE)).text)
    for choices in (["red", "green"], QUOTED):
        said = answer(llm, asked(params, choice=choices))
        assert said.text in choices
        assert said.finish_reason == "stop"
    term = r"([1-9][0-9]?|\(.* \* .*\))"
    said = answer(llm, asked(params, grammar=SUM))
    assert re.fullmatch(rf"{term}( \+ {term})+ =", said.text)


def test_a_choice_is_the_likeliest(llm: LLM) -> None:
    params = asked(GREEDY, choice=[" London", " Paris", " Rome"])
    said = answer(llm, params, prompt="The capital of France is")
    assert said.text == " Paris"


def test_the_batch_changes_no_answer(llm: LLM) -> None:
    every = [
        asked(params, **form)
        for params in (GREEDY, SEEDED[0])
        for form in ({"json": PERSON}, {"regex": DATE}, {"choice": QUOTED}, {"grammar": SUM})
    ]
    every += [dataclasses.replace(params, max_tokens=20) for params in (GREEDY, *SEEDED)]
    prompts = [PROMPT if index % 2 else "Once upon a time" for index in range(len(every))]
    together = llm.generate(prompts, every)
    for prompt, params, output in zip(prompts, every, together, strict=True):
        assert output.outputs == llm.generate(prompt, params)[0].outputs


def test_many_answers_to_one_prompt(llm: LLM) -> None:
    params = asked(SamplingParams(n=3, seed=7, max_tokens=100, logprobs=2), json=PERSON)
    (output,) = llm.generate(PROMPT, params)
    for index, said in enumerate(output.outputs):
        alone = answer(llm, dataclasses.replace(params, n=1, seed=7 + index))
        assert (said.text, said.token_ids, said.logprobs) == (
            alone.text,
            alone.token_ids,
            alone.logprobs,
        )
        jsonschema.validate(json.loads(said.text), PERSON)
        assert said.logprobs is not None
        assert [next(iter(one)) for one in said.logprobs] == list(said.token_ids)


def test_a_stop_text_and_the_limit_still_end_an_answer(llm: LLM) -> None:
    said = answer(llm, asked(dataclasses.replace(GREEDY, stop='"age'), json=PERSON))
    assert (said.finish_reason, said.stop_reason) == ("stop", '"age')
    assert re.fullmatch(r'\{"name": "[^"]*", ', said.text)
    said = answer(llm, asked(dataclasses.replace(GREEDY, max_tokens=3), json=PERSON))
    assert said.finish_reason == "length"


@pytest.mark.parametrize("extra", [{}, {"ignore_eos": True}, {"min_tokens": 30}])
def test_the_end_of_the_form_ends_the_answer(llm: LLM, extra: dict[str, Any]) -> None:
    params = dataclasses.replace(GREEDY, max_tokens=40, **extra)
    said = answer(llm, asked(params, choice=["yes", "no"]))
    assert said.text in ("yes", "no")
    assert (said.finish_reason, said.stop_reason) == ("stop", None)
    assert not set(said.token_ids) & set(llm.tokenizer.eos_token_ids)


def test_a_form_that_may_go_on_ends_at_end_of_sequence(llm: LLM) -> None:
    eos = llm.tokenizer.eos_token_ids
    ended = 0
    for seed in range(6):
        params = SamplingParams(temperature=2.0, seed=seed, max_tokens=60)
        said = answer(llm, asked(params, regex="(ab ?)*"))
        assert re.fullmatch("(ab ?)*a?", said.text)
        ended += said.finish_reason == "stop" and said.token_ids[-1] in eos
    assert ended > 0
    never = SamplingParams(temperature=0, min_tokens=20, max_tokens=20)
    assert len(answer(llm, asked(never, regex="(ab ?)*")).token_ids) == 20


def test_an_empty_answer_is_an_end_of_sequence(llm: LLM) -> None:
    said = answer(llm, asked(GREEDY, regex="x{0}"))
    assert (said.text, len(said.token_ids), said.finish_reason) == ("", 1, "stop")


def test_penalties_do_not_break_a_form(llm: LLM) -> None:
    params = SamplingParams(
        seed=3, repetition_penalty=1.3, frequency_penalty=1.0, top_k=5, top_p=0.5, max_tokens=120
    )
    jsonschema.validate(json.loads(answer(llm, asked(params, json=PERSON)).text), PERSON)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"json": {"type": "objekt"}}, "json cannot be followed: Invalid type: objekt"),
        ({"json": {"$ref": "#/nowhere"}}, "json cannot be followed: Pointer '/nowhere' does not"),
        ({"json": {"not": {}}}, "json cannot be followed: Unimplemented keys"),
        ({"json": {"minLength": 5, "maxLength": 3, "type": "string"}}, "Unsatisfiable schema"),
        ({"json": {"type": "string", "pattern": "("}}, "json cannot be followed: unclosed group"),
        ({"json": {"enum": [f"item {i}" for i in range(100_000)]}}, "at most 131072 are"),
        ({"regex": "("}, "structured_outputs.regex cannot be followed: unclosed group"),
        ({"regex": "(?=a)b"}, "structured_outputs.regex cannot be followed: look-around"),
        ({"grammar": "start: nothing"}, 'grammar cannot be followed: .*unknown name: "nothing"'),
        ({"grammar": "not a grammar"}, "structured_outputs.grammar cannot be followed: "),
    ],
)
def test_what_cannot_be_followed_is_refused_at_once(
    llm: LLM, form: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        llm.stream(PROMPT, asked(GREEDY, **form))
    assert "\n" not in str(caught.value)
    assert not llm.engine.has_unfinished


def grammar_chain(links: int) -> StructuredOutputs:
    """Rules that lead from one to the next."""
    rules = [f'a{i}: "x" a{i + 1}' for i in range(links - 2)]
    return StructuredOutputs(grammar="\n".join(["start: a0", *rules, f'a{links - 2}: "y"']))


def schema_chain(links: int) -> StructuredOutputs:
    """The same of references."""
    to = [{"$ref": f"#/$defs/{i}"} for i in range(links)]
    steps: list[dict[str, Any]] = [
        {"type": "object", "properties": {"x": one}, "required": ["x"]} for one in to[1:]
    ]
    definitions = dict(enumerate([*steps, {"type": "null"}]))
    return StructuredOutputs(json={**to[0], "$defs": {str(i): d for i, d in definitions.items()}})


@pytest.mark.parametrize(
    ("chain", "links"), [(grammar_chain, MAX_LINKS), (schema_chain, MAX_LINKS * 2 // 3)]
)
def test_deep_forms_are_followed_to_a_limit(
    llm: LLM, chain: Callable[[int], StructuredOutputs], links: int
) -> None:
    """Deeper nesting would overflow the stack; in a thread, as in a server."""
    params = SamplingParams(temperature=0, max_tokens=4, structured_outputs=chain(links))
    with ThreadPoolExecutor(1) as pool:
        (output,) = pool.submit(llm.generate, "x", params).result()
    assert len(output.outputs[0].token_ids) == 4
    params = dataclasses.replace(params, structured_outputs=chain(2 * MAX_LINKS))
    with pytest.raises(RequestError, match=r"cannot be followed: .*, at most \d+ are possible"):
        llm.generate("x", params)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ([f"c{i}" for i in range(10_001)], "it has 10001 texts, at most 10000"),
        (["x" * 70_000, "y" * 70_000], "it is 140000 characters long, at most 131072"),
    ],
)
def test_choices_that_would_take_too_long(llm: LLM, choice: list[str], message: str) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputs(choice=choice))
    with pytest.raises(RequestError, match=rf"structured_outputs\.choice .*{message} are possible"):
        llm.generate("x", params)


def test_a_form_that_runs_into_a_limit_aborts_its_answer_only(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = Guide.accept

    def limited(self: Guide, token: int) -> None:
        accept(self, token)
        self._matcher.consume_token(llm.tokenizer.encode("!")[0])  # which the form forbids
        self._look()

    short = dataclasses.replace(GREEDY, max_tokens=10)
    other = answer(llm, short)
    monkeypatch.setattr(Guide, "accept", limited)
    broken, fine = llm.generate([PROMPT] * 2, [asked(short, regex=DATE), short])
    assert fine.outputs[0] == other
    assert broken.outputs[0].finish_reason == "abort"
    assert isinstance(broken.outputs[0].stop_reason, str)


def test_without_the_package_one_line_says_what_to_install(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setattr(llm.engine, "guides", Guides(llm.tokenizer, llm.shape.vocab_size))
    with pytest.raises(RequestError, match=r'pip install "kvreuse\[server\]"$'):
        llm.generate(PROMPT, asked(GREEDY, regex="a"))
    assert answer(llm, GREEDY).text


def test_masks_are_those_of_every_token_tried(llm: LLM) -> None:
    """A mask against the definition: a token is allowed if its bytes lead on to a whole choice."""
    choices = ["Portugal", "Poland", "Paris in spring"]
    guide = Guides(llm.tokenizer, llm.shape.vocab_size).guide(StructuredOutputs(choice=choices))
    assert guide is not None
    said = b""
    for token in llm.tokenizer.encode("Paris in spring"):
        texts = [llm.tokenizer.token_bytes(index) for index in range(llm.shape.vocab_size)]
        expected = {
            index
            for index, text in enumerate(texts)
            if any(choice.encode().startswith(said + text) for choice in choices)
            and not llm.tokenizer.is_special(index)
        }
        # Where only one way leads on, it is cut as the tokenizer cuts it.
        found = set(np.flatnonzero(guide.allowed).tolist())
        assert token in found <= expected
        assert found == expected or len(found) == 1
        guide.accept(token)
        said += texts[token]
    assert guide.complete
