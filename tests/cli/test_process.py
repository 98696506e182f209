"""The command line as a process of its own: streams, signals, pipes and terminals."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

from .conftest import TIMEOUT, command, environment, process

LONG = ("--raw", "--ignore-eos", "--max-tokens", "4000", "--max-model-len", "4096")


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        # A suite that runs in the background of a shell is started with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


def in_terminal(*arguments: str) -> tuple[int, str]:
    """Run with a terminal as all three streams; the exit status and all that it showed."""
    ours, theirs = pty.openpty()
    environ = environment() | {"TERM": "xterm-256color", "COLUMNS": "100"}
    child = subprocess.Popen(
        command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=environ
    )
    os.close(theirs)
    shown = bytearray()
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # EIO: the other side is closed
        pass
    finally:
        os.close(ours)
    return child.wait(TIMEOUT), shown.decode()


def test_text_goes_to_stdout_and_one_line_of_figures_to_stderr(model_path: Path) -> None:
    result = process("run", str(model_path), "Name three colours.", "--max-tokens", "24")
    assert result.returncode == 0
    assert result.stdout.endswith(b"\n")
    assert len(result.stdout) > 10
    [line] = result.stderr.decode().splitlines()
    for words in ("prompt", "generated", "tok/s", "first token", "KV 2 pages", "MiB of"):
        assert words in line
    assert "\x1b" not in line


def test_text_is_written_while_it_is_generated(model_path: Path) -> None:
    child = start("run", str(model_path), "Once upon a time", *LONG)
    assert child.stdout is not None
    try:
        assert len(child.stdout.read(20)) == 20
        assert child.poll() is None
    finally:
        child.kill()
        child.communicate()


def test_ctrl_c_ends_quietly(model_path: Path) -> None:
    child = start("run", str(model_path), "Once upon a time", *LONG)
    assert child.stdout is not None
    child.stdout.read(20)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=TIMEOUT)
    assert (child.returncode, errors) == (130, b"")


def test_a_reader_that_leaves_ends_it_quietly(model_path: Path) -> None:
    child = start("run", str(model_path), "Once upon a time", *LONG)
    assert child.stdout is not None
    child.stdout.read(20)
    child.stdout.close()
    began = time.monotonic()
    assert child.stderr is not None
    errors = child.stderr.read()
    assert (child.wait(TIMEOUT), errors) == (141, b"")
    assert time.monotonic() - began < TIMEOUT / 2
    child.stderr.close()


def test_standard_input_is_the_prompt(model_path: Path) -> None:
    options = ("--json", "--max-tokens", "8")
    typed = process("run", str(model_path), "Grüße, 世界", *options)
    piped = process("run", str(model_path), "-", *options, stdin="Grüße, 世界\n".encode())
    assert json.loads(typed.stdout)["token_ids"] == json.loads(piped.stdout)["token_ids"]
    assert json.loads(typed.stdout)["prompt"] == json.loads(piped.stdout)["prompt"]


def test_an_output_encoding_without_the_characters_is_no_error(model_path: Path) -> None:
    result = subprocess.run(
        command("run", str(model_path), "日本の首都は", "--raw", "--max-tokens", "12"),
        capture_output=True,
        env=environment() | {"PYTHONIOENCODING": "ascii"},
        timeout=TIMEOUT,
        check=False,
    )
    assert result.returncode == 0
    assert result.stdout.isascii()


def test_a_terminal_gets_colours_and_a_file_does_not(model_path: Path) -> None:
    status, shown = in_terminal("info", str(model_path))
    assert status == 0
    assert "\x1b[" in shown
    assert b"\x1b" not in process("info", str(model_path)).stdout


def test_an_error_in_a_terminal_is_one_red_line() -> None:
    status, shown = in_terminal("run", "no-such-model", "Hello")
    assert status == 2
    [line] = shown.splitlines()
    assert line.startswith("\x1b[1;31merror:\x1b[0m ")


def test_the_console_script_and_the_module_are_the_same() -> None:
    script = Path(sys.executable).with_name("kvreuse")
    by_script = subprocess.run([script, "--version"], capture_output=True, check=True)
    assert by_script.stdout == process("--version").stdout
    assert by_script.stdout.startswith(b"kvreuse ")
