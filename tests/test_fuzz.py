"""The fuzzer of ``bench/`` finds nothing in a few hundred cases, and would say so if it did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"


def fuzz(*arguments: str, folder: Path = BENCH) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(folder / "fuzz.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_few_hundred_damaged_files() -> None:
    done = fuzz("--cases", "300", "--seed", "7", "--commands", "2")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "; 0 at fault; " in done.stdout


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise RuntimeError('a bug')", "RuntimeError: a bug"),
        ("raise KVReuseError('two\\nlines')", "not one clear line"),
        ("bytearray(100_000_000)", "bytes, the sound file"),
        ("import ctypes; ctypes.string_at(0)", "Segmentation fault"),
        ("while True: pass", "Timeout"),
    ],
)
def test_a_fault_is_found(fault: str, words: str, tmp_path: Path) -> None:
    for name in ("fuzz.py", "fuzz_case.py", "mutations.py", "gguf_parts.py"):
        source = (BENCH / name).read_text(encoding="utf-8")
        source = source.replace("HANG_SECONDS = 20", "HANG_SECONDS = 2")
        source = source.replace("Path(__file__).resolve().parents[1]", repr(str(BENCH.parent)))
        load = "        with LLM("
        planted = f"        if outcome.case >= 0:\n            {fault}\n{load}"
        (tmp_path / name).write_text(source.replace(load, planted), encoding="utf-8")
    done = fuzz("--cases", "1", "--commands", "0", folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert words in done.stdout
    assert "; 1 at fault; " in done.stdout
