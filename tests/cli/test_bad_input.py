"""Whatever a user gets wrong: one clear line on standard error, exit status 2, nothing else."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from .conftest import Damage, invoke, process

PROMPT = "Hello"


def error_of(*arguments: str, stdin: bytes = b"") -> str:
    """The one line that a command which must fail prints."""
    result = invoke(*arguments, stdin=stdin)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    return str(line)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def dims(*sizes: int) -> bytes:
    return struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)


@pytest.mark.parametrize("command", [["run"], ["info"]], ids=lambda words: words[0])
class TestModelFiles:
    def error_of(self, command: list[str], path: Path | str) -> str:
        return error_of(*command, str(path), *([PROMPT] if command == ["run"] else []))

    def test_a_missing_file(self, command: list[str], tmp_path: Path) -> None:
        path = tmp_path / "missing.gguf"
        assert str(path) in self.error_of(command, path)

    def test_an_unknown_name(self, command: list[str]) -> None:
        error = self.error_of(command, "no-such-model")
        assert "no-such-model" in error
        assert "smollm2-135m" in error

    def test_a_folder(self, command: list[str], tmp_path: Path) -> None:
        assert "folder" in self.error_of(command, tmp_path)

    def test_an_empty_file(self, command: list[str], tmp_path: Path) -> None:
        assert "empty" in self.error_of(command, written(tmp_path / "empty.gguf", b""))

    def test_a_wrong_magic(self, command: list[str], tmp_path: Path) -> None:
        path = written(tmp_path / "zip.gguf", b"PK\x03\x04" + bytes(1000))
        assert "not a GGUF file" in self.error_of(command, path)

    @pytest.mark.parametrize("length", [3, 20, 5_000, 1_000_000, 50_000_000])
    def test_a_truncated_file(
        self, command: list[str], length: int, model_path: Path, tmp_path: Path
    ) -> None:
        with model_path.open("rb") as stream:
            path = written(tmp_path / "cut.gguf", stream.read(length))
        assert str(path) in self.error_of(command, path)

    @pytest.mark.parametrize("seed", range(8))
    def test_random_bytes_behind_a_good_start(
        self, command: list[str], seed: int, tmp_path: Path
    ) -> None:
        noise = random.Random(seed).randbytes(20_000)
        start = b"GGUF" + struct.pack("<IQQ", 3, 272, 37)
        path = written(tmp_path / "noise.gguf", start + noise)
        assert str(path) in self.error_of(command, path)

    def test_an_unsupported_architecture(self, command: list[str], damaged: Damage) -> None:
        key = b"general.architecture" + struct.pack("<IQ", 8, 5)
        path = damaged(key + b"llama", key + b"mamba")
        assert "mamba" in self.error_of(command, path)

    def test_an_unsupported_tensor_type(self, command: list[str], damaged: Damage) -> None:
        tensor = b"blk.3.attn_k.weight" + dims(576, 192)
        path = damaged(tensor + struct.pack("<I", 3), tensor + struct.pack("<I", 20))
        error = self.error_of(command, path)
        assert "blk.3.attn_k.weight" in error
        assert "IQ4_NL" in error

    def test_shapes_that_disagree(self, command: list[str], damaged: Damage) -> None:
        name = b"blk.3.attn_k.weight"
        path = damaged(name + dims(576, 192), name + dims(576, 160))
        assert "blk.3.attn_k.weight" in self.error_of(command, path)


class TestPrompts:
    def test_an_empty_prompt(self, model_path: Path) -> None:
        assert "empty" in error_of("run", str(model_path), "")
        assert "empty" in error_of("run", str(model_path), "", "--raw")

    def test_empty_standard_input(self, model_path: Path) -> None:
        assert "empty" in error_of("run", str(model_path), "-")

    def test_standard_input_that_is_not_utf8(self, model_path: Path) -> None:
        error = error_of("run", str(model_path), "-", stdin=b"caf\xe9 noir")
        assert "not UTF-8 at byte 3" in error

    def test_arguments_that_are_not_utf8(self, model_path: Path) -> None:
        broken = "caf\udce9"  # what Python makes of the byte 0xe9 (PEP 383)
        assert "prompt is not UTF-8" in error_of("run", str(model_path), broken)
        assert "--system is not UTF-8" in error_of(
            "run", str(model_path), PROMPT, "--system", broken
        )
        assert "--stop is not UTF-8" in error_of("run", str(model_path), PROMPT, "--stop", broken)

    def test_a_prompt_longer_than_the_context(self, model_path: Path) -> None:
        error = error_of("run", str(model_path), "word " * 200, "--max-model-len", "64")
        assert "64" in error

    def test_a_prompt_longer_than_the_pool(self, model_path: Path) -> None:
        error = error_of("run", str(model_path), "word " * 200, "--kv-cache-memory", "1MiB")
        assert "--kv-cache-memory" in error

    def test_a_system_message_without_a_template(self, model_path: Path) -> None:
        error = error_of("run", str(model_path), PROMPT, "--raw", "--system", "Be brief.")
        assert "--system" in error


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--temperature", "-0.1"),
        ("--temperature", "nan"),
        ("--temperature", "inf"),
        ("--temperature", "hot"),
        ("--top-p", "0"),
        ("--top-p", "1.5"),
        ("--top-k", "-2"),
        ("--top-k", "0.5"),
        ("--min-p", "-0.5"),
        ("--repetition-penalty", "0"),
        ("--presence-penalty", "2.5"),
        ("--frequency-penalty", "-3"),
        ("--seed", "-1"),
        ("--stop", ""),
        ("--stop-token-ids", "-5"),
        ("--min-tokens", "-1"),
        ("--min-tokens", "100000"),
        ("--max-tokens", "0"),
        ("--max-tokens", "1e99"),
        ("--kv-cache-memory", "lots"),
        ("--kv-cache-memory", "-1"),
        ("--kv-cache-memory", "100KiB"),
        ("--kv-cache-memory", "900TiB"),
        ("--max-model-len", "0"),
        ("--max-model-len", "8193"),
        ("--max-num-batched-tokens", "0"),
        ("--page-size", "33"),
        ("--page-size", "0"),
        ("--threads", "0"),
    ],
)
def test_a_value_out_of_range_is_named(flag: str, value: str, model_path: Path) -> None:
    error = error_of("run", str(model_path), PROMPT, flag, value)
    assert flag.strip("-").replace("-", "_") in error.replace("-", "_")


def test_an_unknown_instruction_set_names_those_there_are(model_path: Path) -> None:
    error = error_of("run", str(model_path), PROMPT, "--isa", "pentium")
    assert "pentium" in error
    assert "portable" in error


def test_a_pool_below_one_sequence(model_path: Path) -> None:
    error = error_of(
        *("run", str(model_path), PROMPT),
        *("--kv-cache-memory", "2MiB", "--max-model-len", "4096"),
    )
    assert "4096" in error
    assert "--kv-cache-memory" in error


def test_pull_without_a_name_lists_the_names() -> None:
    assert "smollm2-135m" in error_of("pull")


def test_pull_of_an_unknown_name_lists_the_names() -> None:
    error = error_of("pull", "no-such-model")
    assert "no-such-model" in error
    assert "smollm2-135m" in error


def test_a_process_ends_the_same_way(tmp_path: Path) -> None:
    result = process("run", str(tmp_path), PROMPT)
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.startswith(b"error: ")
    assert result.stderr.count(b"\n") == 1
