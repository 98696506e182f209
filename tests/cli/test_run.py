"""``kvreuse run`` with the real model: what it says, and what it says about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvreuse
from kvreuse import SamplingParams

from .conftest import invoke

PROMPT = "Name three colours."


def run(model_path: Path, *arguments: str, stdin: bytes = b"") -> Any:
    result = invoke("run", str(model_path), *arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result


def run_json(model_path: Path, *arguments: str, stdin: bytes = b"") -> dict[str, Any]:
    result = run(model_path, *arguments, "--json", stdin=stdin)
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.fixture(scope="module")
def answer(model_path: Path) -> dict[str, Any]:
    return run_json(model_path, PROMPT, "--max-tokens", "40")


def test_the_json_object_holds_answer_timings_and_pages(
    answer: dict[str, Any], model_path: Path
) -> None:
    assert answer["model"] == str(model_path)
    assert 0 < len(answer["token_ids"]) <= 40
    assert answer["finish_reason"] in ("stop", "length")
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    tokens = answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"])
    assert answer["kv"]["pages"] == -(-(tokens - 1) // answer["kv"]["page_size"])
    assert answer["kv"]["bytes"] == answer["kv"]["pages"] * 32 * 23040
    assert answer["kv"]["pool_bytes"] == answer["kv"]["pool_pages"] * 32 * 23040
    assert all(value > 0 for value in answer["timings"].values())


def test_the_text_that_streams_is_the_json_objects_text(
    answer: dict[str, Any], model_path: Path
) -> None:
    result = run(model_path, PROMPT, "--max-tokens", "40")
    assert result.stdout == answer["text"].rstrip("\n") + "\n"
    assert len(result.stderr.splitlines()) == 1


def test_the_answer_is_the_one_that_python_gives(answer: dict[str, Any], model_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=40)
    with kvreuse.LLM(model_path, kv_cache_memory="64MiB") as llm:
        [output] = llm.chat([{"role": "user", "content": PROMPT}], params)
    assert list(output.outputs[0].token_ids) == answer["token_ids"]
    assert output.outputs[0].text == answer["text"]
    assert output.prompt == answer["prompt"]


def test_engine_flags_do_not_change_the_answer(answer: dict[str, Any], model_path: Path) -> None:
    flags = ("--threads", "1", "--max-num-batched-tokens", "7", "--kv-cache-memory", "8MiB")
    other = run_json(model_path, PROMPT, "--max-tokens", "40", *flags, "--page-size", "64")
    assert other["token_ids"] == answer["token_ids"]
    assert other["kv"]["page_size"] == 64


def test_raw_is_the_prompt_as_it_is(model_path: Path) -> None:
    answer = run_json(model_path, "The capital of France is", "--raw", "--max-tokens", "5")
    assert answer["prompt"] == "The capital of France is"
    assert "Paris" in answer["text"]


def test_a_system_message_is_part_of_the_chat(model_path: Path) -> None:
    answer = run_json(model_path, PROMPT, "--system", "Be terse.", "--max-tokens", "1")
    assert "system\nBe terse." in answer["prompt"]
    assert answer["prompt"].index("Be terse.") < answer["prompt"].index(PROMPT)


def test_a_last_line_end_of_standard_input_counts_only_with_raw(model_path: Path) -> None:
    one = ("-", "--max-tokens", "1")
    assert (
        f"{PROMPT}<|im_end|>"
        in run_json(model_path, *one, stdin=b"Name three colours.\n")["prompt"]
    )
    assert run_json(model_path, *one, "--raw", stdin=b"One\ntwo\n")["prompt"] == "One\ntwo\n"


def test_a_stop_text_ends_the_answer_and_is_cut_off(model_path: Path) -> None:
    counting = "1, 2, 3, 4, 5, 6,"
    answer = run_json(model_path, counting, "--raw", "--stop", " 9", "--stop", "xyz")
    assert answer["text"] == " 7, 8,"
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", " 9")


def test_a_seed_decides_what_is_sampled(model_path: Path) -> None:
    def sample(seed: int) -> list[int]:
        flags = ("--raw", "--temperature", "1", "--max-tokens", "12", "--seed", str(seed))
        ids: list[int] = run_json(model_path, "Once upon a time", *flags)["token_ids"]
        return ids

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
