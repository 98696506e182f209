"""The comparison with other engines, run on the one that is here; its verdicts and its prompts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"
sys.path.insert(0, str(BENCH))

from peers.adapter import Answer  # noqa: E402
from peers.cases import TINY, Prompts, Sizes, compare  # noqa: E402
from peers.report import Result, markdown, rows, verdict  # noqa: E402


def peers(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(BENCH), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "peers", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_this_engine_gives_every_figure_and_the_same_bits(model_path: Path) -> None:
    done = peers("--model", str(model_path), "--engines", "kvreuse", "--repeats", "1", "--tiny")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("yes, bit for bit") == 4
    for row in rows(TINY):
        assert row.name in done.stdout


def test_the_json_has_all_runs(model_path: Path) -> None:
    done = peers(
        "--model", str(model_path), "--engines", "kvreuse", "--repeats", "1", "--tiny", "--json"
    )
    (result,) = json.loads(done.stdout)
    assert result["runs"] == [result["figures"]]
    assert set(result["figures"]) == {row.figure for row in rows(TINY)}
    assert result["same"]["shared"] == {"answers": 2, "same_ids": 2, "same_scores": 2}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--engines", "nothing"), "there is no engine 'nothing'"),
        (("--engines", "kvreuse", "--model", "no-such-file.gguf"), "no-such-file.gguf"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    done = peers(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_prompts_share_what_they_are_meant_to_share_only() -> None:
    sizes = Sizes()
    prompts = Prompts.cut(range(100_000), sizes)
    assert prompts.long[:1880] == prompts.other_end[:1880]
    assert not set(prompts.long[1880:]) & set(prompts.other_end[1880:])
    assert {tuple(p[:1024]) for p in prompts.shared} == {tuple(prompts.shared[0][:1024])}
    assert len({p[1024] for p in prompts.shared}) == len({p[0] for p in prompts.distinct}) == 32
    with pytest.raises(ValueError, match="too few"):
        Prompts.cut(range(1000), sizes)


def test_answers_differ_in_tokens_in_scores_or_not_at_all() -> None:
    one, other = Answer([1, 2], [0.5, 0.25], 1, 2), Answer([1, 2], [0.5, 0.26], 3, 4)
    third = Answer([1, 3], [0.5, 0.25], 1, 2)
    assert verdict(compare([one], [one])) == "yes, bit for bit"
    assert verdict(compare([one, one], [one, other])) == "tokens only"
    assert verdict(compare([one, one], [one, third])) == "no (1 of 2 differ)"


def test_ratios_say_how_much_better_the_first_is() -> None:
    same = dict.fromkeys(("again", "other_end", "shared", "distinct"), compare([], []))
    names = [row.figure for row in rows(TINY)]
    ours = Result("ours", "1", "as it is", dict.fromkeys(names, 10.0), [], same)
    theirs = Result("theirs", "2", "as it is", dict.fromkeys(names, 20.0), [], same)
    lines = markdown([ours, theirs], TINY).splitlines()
    assert lines[0] == "|  | ours | theirs | ours is better by |"
    assert lines[2] == "| prefill, 64 tokens (tok/s) | 10 | 20 | 0.50x |"
    assert "| peak memory (MiB) | 10 | 20 | 2.00x |" in lines
    assert lines[-1] == "* theirs 2: as it is."
