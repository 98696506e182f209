"""One damaged file, used as a model: what came out, how long it took, how much memory it took."""

from __future__ import annotations

import dataclasses
import gc
import random
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.model.gguf.gguf_files import write_tiny

from gguf_parts import Parts
from kvreuse import LLM, SamplingParams
from kvreuse.errors import KVReuseError
from mutations import MUTATIONS

PROMPT = "Hello, w\u00f6rld 123"
MESSAGES = [{"role": "user", "content": PROMPT}]
Options = dict[str, Any]
OPTIONS: Options = {
    "kv_cache_memory": "128KiB",
    "max_num_seqs": 1,
    "max_num_batched_tokens": 32,
    "threads": 2,
}
MAX_LINE = 600
"""Characters that an error's line may have, the path included."""
RESIDENT_SLACK = 24 << 20
"""Bytes of resident memory that the system's allocator may keep or round up."""
MAX_CHAT = 1 << 28
"""Bytes that a template may make its values take, whatever it says (``text/sandbox.py``)."""
COMMAND_SECONDS = 60


@dataclasses.dataclass
class Outcome:
    """``line`` is the error's, empty where the file was served; ``faults`` what must not be."""

    case: int
    base: str
    mutation: str
    line: str = ""
    faults: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    traced: int = 0
    resident: int = 0


def write_bases(folder: Path) -> list[Path]:
    """Small sound files: each architecture, each kind of tokenizer, most types of tensor."""
    wide: Options = {"hidden": 256, "ffn": 256, "heads": 8, "layers": 1, "vocab": 272}
    small: Options = {"layers": 1, "vocab": 272}
    some = {"blk.0.attn_q.weight": "Q6_K", "blk.0.ffn_up.weight": "Q5_K"}
    yarn = {"type": "yarn", "factor": 4.0, "original_context_length": 128}
    gemma: Options = {"vocab": 300, "matrix_type": "Q5_1", "extra": sentencepiece_keys(300)}
    variants: dict[str, Options] = {
        "llama": small,
        "llama-k": {"matrix_type": "Q4_K", "types": some, **wide},
        "llama-f": {"matrix_type": "Q4_0", "rope_factors": [1.0] * 8 + [8.0] * 8, **small},
        "qwen2": {"matrix_type": "Q5_0", "scaling": yarn, **small},
        "qwen3": {"matrix_type": "F16", "embed_type": "BF16", "tied": False, **small},
        "gemma3": gemma,
    }
    return [
        write_tiny(folder / f"{name}.gguf", name.partition("-")[0], **options)
        for name, options in variants.items()
    ]


def sentencepiece_keys(size: int) -> dict[str, object]:
    """A SentencePiece vocabulary with byte fallback; takes the merges of a BPE out."""
    pieces = [("<unk>", 2, 0.0), ("<bos>", 3, 0.0), ("<eos>", 3, 0.0)]
    pieces += [(f"<0x{byte:02X}>", 6, 0.0) for byte in range(256)]
    words = [
        "\u2581",
        *"Helowrd123,",
        "\u2581w",
        "He",
        "ll",
        "Hell",
        "Hello",
        "\u2581wo",
        "rl",
        "rld",
    ]
    pieces += [(word, 1, -float(rank)) for rank, word in enumerate(words)]
    pieces += [(f"<unused{i}>", 5, 0.0) for i in range(size - len(pieces))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": None,
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.tokens": [piece for piece, _, _ in pieces],
        "tokenizer.ggml.token_type": [kind for _, kind, _ in pieces],
        "tokenizer.ggml.scores": [score for _, _, score in pieces],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
    }


def damage(case: int, seed: int, bases: list[Path], target: Path) -> tuple[Path, str]:
    """Write the damaged file of a case to ``target``; returns its base and the mutation's name."""
    rng = random.Random(f"{seed} {case}")
    base = bases[case % len(bases)]
    mutation = MUTATIONS[case // len(bases) % len(MUTATIONS)]
    target.write_bytes(mutation(Parts.read(base), rng))
    return base, mutation.__name__


def measured(path: Path, outcome: Outcome) -> None:
    """Use a file as a model; an exception that is no user's error becomes a fault."""
    start = time.perf_counter()
    try:
        _use(path, outcome)
    except KVReuseError as error:
        outcome.line = str(error)
        if not outcome.line or not outcome.line.isprintable() or len(outcome.line) > MAX_LINE:
            outcome.faults.append(f"not one clear line: {outcome.line[:200]!r}")
    except Exception as error:
        outcome.faults.append(f"{type(error).__name__}: {' '.join(str(error).split())}")
    outcome.seconds = time.perf_counter() - start


def _use(path: Path, outcome: Outcome) -> None:
    """Load a file and generate a token: measured. Then one of a chat, whose template is bounded."""
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    gc.collect()  # or what is freed in between would be taken for a peak
    tracemalloc.reset_peak()
    traced, resident = tracemalloc.get_traced_memory()[0], _reset_resident()
    try:
        with LLM(str(path), **OPTIONS) as llm:
            llm.generate([PROMPT], params)
            _measure(outcome, traced, resident)
            if llm.chat_template is not None:
                llm.chat(MESSAGES, params)
            chat = tracemalloc.get_traced_memory()[1] - traced
    finally:
        if not outcome.traced:
            _measure(outcome, traced, resident)
    if chat > MAX_CHAT:
        outcome.faults.append(f"the chat's template took {chat} bytes")


def _measure(outcome: Outcome, traced: int, resident: int) -> None:
    outcome.traced = tracemalloc.get_traced_memory()[1] - traced
    outcome.resident = max(0, _status("VmHWM") - resident)


def compare(outcome: Outcome, sound: Outcome, nbytes: int) -> None:
    """Memory beyond what the sound file takes, and twice the damaged one's size, is a fault."""
    if outcome.traced > sound.traced + 2 * nbytes:
        outcome.faults.append(f"took {outcome.traced} bytes, the sound file {sound.traced}")
    if outcome.resident > sound.resident + 2 * nbytes + RESIDENT_SLACK:
        outcome.faults.append(f"{outcome.resident} bytes resident, sound {sound.resident}")


def command(path: Path, outcome: Outcome) -> None:
    """The command line on the same file: the same verdict, in one line, with status 2."""
    arguments = [
        "run",
        str(path),
        PROMPT,
        "--raw",
        "--max-tokens",
        "1",
        "--kv-cache-memory",
        "128KiB",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "kvreuse", *arguments],
        capture_output=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    lines = done.stderr.decode(errors="replace").splitlines()
    if done.returncode not in (0, 2) or len(lines) != 1:
        outcome.faults.append(f"the command ended with {done.returncode}: {lines[-3:]}")
    elif done.returncode == 2 and (done.stdout or not lines[0].startswith("error: ")):
        outcome.faults.append(f"the command said: {lines[0]!r}")
    elif (done.returncode == 0) and outcome.line and path.name in outcome.line:
        outcome.faults.append("the command served what the library refused")


def _reset_resident() -> int:
    """Start the peak of resident memory anew (``proc(5)``, clear_refs); what is resident now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)
